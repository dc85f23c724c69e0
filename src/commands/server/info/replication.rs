//! The section `replication`.

use super::Page;
use crate::config::{ReplAck, Settings};
use crate::followers::FollowerState;
use crate::replica::{LinkState, LinkView, Primary};

/// Replication id that stands for none.
const NO_ID: &str = "0000000000000000000000000000000000000000";

impl Page<'_> {
    /// Writes the section.
    pub(super) fn replication(&mut self) {
        let replica = &self.node.health.replica;
        let link = replica.link().clone();
        match &link.primary {
            None => self.field("role", "master"),
            Some(primary) => self.replica(primary, &link),
        }
        let settings = self.worker.settings();
        self.followers(&settings);
        // It keeps its position while it hears other replicas.
        let following = replica.is_following();
        let stream_id = String::from_utf8_lossy(&link.position.id).into_owned();
        let id = if following && !stream_id.is_empty() { stream_id } else { link.own_id };
        let stream = self.node.followers.figures();
        // Replicas of the former primary go on with the stream, if it begins there.
        let former = stream
            .as_ref()
            .and_then(|stream| stream.formers.first().cloned())
            .filter(|_| !following);
        let former_id = former.as_ref().map(|former| String::from_utf8_lossy(&former.id).into());
        let former_offset = former.as_ref().map(|former| former.offset);
        // A switch-over waits for the replica that has all of it.
        let end = self.node.followers.acknowledged_end();
        let offset = match self.mirrored_offset() {
            None if following => Some(replica.offset()),
            None => end.or(former_offset),
            mirrored => mirrored,
        };
        let id = stream.as_ref().filter(|_| !following).map_or(id, |stream| stream.id.clone());
        let held = stream.as_ref().map_or(0, |stream| stream.end - stream.first);
        let first = stream.as_ref().map_or(0, |stream| stream.first + 1);
        self.fields(&[
            ("replicas_waiting_psync", &0),
            ("master_failover_state", &self.node.followers.failover.step().as_str()),
            ("master_replid", &id),
            ("master_replid2", &former_id.unwrap_or_else(|| NO_ID.to_owned())),
            ("master_repl_offset", &offset.unwrap_or(0)),
            // The offset of the first byte that the former primary had not sent.
            ("second_repl_offset", &former_offset.map_or(-1, |end| end.cast_signed() + 1)),
            ("repl_backlog_active", &u8::from(stream.is_some())),
            ("repl_backlog_size", &settings.repl_backlog_size),
            ("repl_backlog_first_byte_offset", &first),
            ("repl_backlog_histlen", &held),
        ]);
    }

    /// Returns the position of a cluster's replica in the journals of all owners. Clients look there if a
    /// replica has data.
    fn mirrored_offset(&self) -> Option<u64> {
        let cluster = self.node.cluster.as_ref()?;
        self.node.health.replica.is_mirroring().then(|| cluster.mirrors.offset())
    }

    /// Writes the fields of the replicas of this server.
    fn followers(&mut self, settings: &Settings) {
        let now_ms = self.node.clock.now_ms();
        let all = self.node.followers.all();
        self.field("connected_slaves", all.len());
        if settings.min_replicas_to_write > 0 && settings.min_replicas_max_lag > 0 {
            let max_lag_s = u64::from(settings.min_replicas_max_lag);
            self.field("min_slaves_good_slaves", self.node.followers.good(max_lag_s, now_ms));
        }
        let acks = &self.node.followers.acks;
        if settings.repl_ack != ReplAck::None {
            let is_owner = acks.is_active() && acks.is_owner();
            self.fields(&[
                ("repl_ack", &settings.repl_ack.as_str()),
                ("repl_ack_replicas", &acks.needed()),
                ("repl_ack_overdue", &u8::from(acks.is_overdue())),
                ("repl_ack_owner", &u8::from(is_owner)),
                ("repl_ack_lease_ms", &acks.lease_left_ms()),
                ("repl_group_size", &settings.repl_group_size),
            ]);
        }
        let heard = self.node.health.replica.with_succession(|it| it.counts());
        if let Some((heard, awaited)) = heard {
            self.fields(&[("repl_group_heard", &heard), ("repl_group_awaited", &awaited)]);
        }
        for (number, follower) in all.iter().enumerate() {
            let (facts, state) = (&follower.facts, follower.state());
            let is_online = state == FollowerState::Online;
            let line = format!(
                "ip={},port={},state={},offset={},lag={},type=replica",
                facts.ip,
                facts.port,
                state.as_str(),
                follower.applied(),
                if is_online { follower.lag_s(now_ms) } else { 0 },
            );
            self.field(&format!("slave{number}"), line);
        }
    }

    /// Writes the fields of a replica.
    fn replica(&mut self, primary: &Primary, link: &LinkView) {
        let now_ms = self.node.clock.now_ms();
        let settings = self.worker.settings();
        let replica = &self.node.health.replica;
        let is_up = replica.is_up();
        let seconds_since = |ms: u64| {
            if ms == 0 { -1 } else { (now_ms.saturating_sub(ms) / 1000).cast_signed() }
        };
        let offset = self.mirrored_offset().unwrap_or_else(|| replica.offset());
        let is_syncing = link.state == LinkState::Sync;
        self.fields(&[
            ("role", &"slave"),
            ("master_host", &primary.host),
            ("master_port", &primary.port),
            ("master_link_status", &if is_up { "up" } else { "down" }),
            ("master_last_io_seconds_ago", &if is_up { seconds_since(link.heard_ms) } else { -1 }),
            ("master_sync_in_progress", &u8::from(is_syncing)),
            ("slave_read_repl_offset", &offset.max(replica.read_offset())),
            ("slave_repl_offset", &offset),
            ("replicas_repl_buffer_size", &0),
            ("replicas_repl_buffer_peak", &0),
        ]);
        if is_syncing {
            let (read, all) = link.sync_bytes;
            let (total, left) = match all {
                Some(all) => (all.cast_signed(), (all - read).cast_signed()),
                None => (0, -read.cast_signed()),
            };
            let percent = all.map_or(0.0, |all| 100.0 * read as f64 / all.max(1) as f64);
            self.fields(&[
                ("master_sync_total_bytes", &total),
                ("master_sync_read_bytes", &read),
                ("master_sync_left_bytes", &left),
                ("master_sync_perc", &format!("{percent:.2}")),
                ("master_sync_last_io_seconds_ago", &seconds_since(link.heard_ms).max(0)),
            ]);
        }
        if !is_up {
            self.field("master_link_down_since_seconds", seconds_since(link.down_since_ms));
            if !link.down_reason.is_empty() {
                let reason = link.down_reason.replace(char::is_control, " ");
                self.field("master_link_down_reason", reason);
            }
        }
        self.fields(&[
            ("slave_priority", &settings.replica_priority),
            ("slave_read_only", &u8::from(settings.replica_read_only)),
            ("replica_announced", &1),
        ]);
    }
}
