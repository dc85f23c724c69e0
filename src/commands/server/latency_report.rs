//! The texts of LATENCY: the graph of a class of events, and the doctor's report.

use crate::config::{AppendFsync, Settings};
use flagstone_storage::latency::{LatencyEvent, SpikeSeries};
use std::fmt::Write;

/// Columns and rows of a graph.
const COLUMNS: usize = 80;
const ROWS: usize = 4;

/// Characters of the top of a bar by its height within a row, the lowest first, and of the rows
/// below.
const TOPS: [char; 2] = ['_', 'o'];
const BELOW: char = '#';

/// Returns the graph of the spikes of a class: a column for each, with its age below.
pub(super) fn graph_text(event: LatencyEvent, series: &SpikeSeries, now_s: u64) -> String {
    let shown = series.spikes.len().saturating_sub(COLUMNS);
    let low = series.spikes.iter().map(|spike| spike.ms).min().unwrap_or(0);
    let high = series.spikes.iter().map(|spike| spike.ms).max().unwrap_or(0);
    let mut text = format!(
        "{} - high {high} ms, low {low} ms (all time high {} ms)\n{}\n",
        event.name(),
        series.max_ms,
        "-".repeat(COLUMNS)
    );
    let columns: Vec<(usize, String)> = series
        .spikes
        .iter()
        .skip(shown)
        .map(|spike| (step(spike.ms, low, high), age(now_s.saturating_sub(spike.time_s))))
        .collect();
    for row in (0..ROWS).rev() {
        let of = |(step, _): &(usize, String)| match step.checked_sub(row * TOPS.len()) {
            None => ' ',
            Some(above) => TOPS.get(above).copied().unwrap_or(BELOW),
        };
        put_line(&mut text, columns.iter().map(of));
    }
    text.push('\n');
    let longest = columns.iter().map(|(_, age)| age.len()).max().unwrap_or(0);
    for at in 0..longest {
        put_line(&mut text, columns.iter().map(|(_, age)| age.chars().nth(at).unwrap_or(' ')));
    }
    text
}

fn put_line(text: &mut String, line: impl Iterator<Item = char>) {
    let line: String = line.collect();
    text.push_str(line.trim_end());
    text.push('\n');
}

/// Returns the height of a spike between the lowest and the highest.
fn step(ms: u64, low: u64, high: u64) -> usize {
    let steps = ROWS * TOPS.len();
    let share = (ms - low) as f64 / (high - low).max(1) as f64;
    ((share * steps as f64) as usize).min(steps - 1)
}

fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

/// Returns the doctor's report.
pub(super) fn doctor_text(
    all: &[(LatencyEvent, SpikeSeries)],
    settings: &Settings,
    now_s: u64,
) -> String {
    let threshold_ms = settings.latency_monitor_threshold_ms;
    if all.is_empty() {
        return match threshold_ms {
            0 => "Latency monitoring is off: CONFIG SET latency-monitor-threshold MILLISECONDS \
                switches it on.\n"
                .to_owned(),
            _ => format!("No event has taken {threshold_ms} ms or longer so far.\n"),
        };
    }
    let mut text = "Some events took long:\n\n".to_owned();
    for (n, (event, series)) in all.iter().enumerate() {
        let count = series.spikes.len() as u64;
        let mean = series.spikes.iter().map(|spike| spike.ms).sum::<u64>() / count.max(1);
        let deviation: u64 = series.spikes.iter().map(|spike| spike.ms.abs_diff(mean)).sum();
        let first = series.spikes.front().map_or(now_s, |spike| spike.time_s);
        let period = now_s.saturating_sub(first).max(1) as f64 / count.max(1) as f64;
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "{}. {}: {count} latency spikes (average {mean}ms, mean deviation {}ms, period \
            {period:.2} sec). Worst all time event {}ms.",
            n + 1,
            event.name(),
            deviation / count.max(1),
            series.max_ms
        );
    }
    text.push_str("\nWhat may help:\n\n");
    for (event, _) in all {
        let _ = writeln!(text, "- {}: {}", event.name(), advice(*event, settings));
    }
    text
}

fn advice(event: LatencyEvent, settings: &Settings) -> String {
    match event {
        LatencyEvent::Command => {
            let slow_us = settings.command_logs[0].from;
            let threshold_us = settings.latency_monitor_threshold_ms.saturating_mul(1000);
            let log = match slow_us > threshold_us && threshold_us > 0 {
                true => format!(
                    " It misses them now: CONFIG SET commandlog-execution-slower-than \
                    {threshold_us}."
                ),
                false => String::new(),
            };
            format!(
                "COMMANDLOG GET 10 slow names the commands. Commands on whole collections take \
                time by their size: read and delete them in parts.{log}"
            )
        }
        LatencyEvent::FastCommand => "these commands take microseconds unless the thread does not \
            run. Look for other load on the CPUs, for swapping, and for more workers than CPUs."
            .to_owned(),
        LatencyEvent::JournalSync => match settings.appendfsync {
            AppendFsync::Always => "the disk, or the bucket, takes long to store what was \
                written, and every write waits for that. Look for other users of the disk; a \
                disk of its own for the journal (journal) helps. appendfsync everysec does not \
                wait, and may lose the last second."
                .to_owned(),
            _ => "the disk, or the bucket, takes long to store what was written. Writes wait once \
                they are everysec-bound ahead of it."
                .to_owned(),
        },
        LatencyEvent::HandOver => "many rows are handed over at once. A shorter \
            handover-interval-ms, or more shards, makes the portions smaller."
            .to_owned(),
        LatencyEvent::EngineWriteStall => "merges fall behind the writes: more \
            background-workers, a faster disk, or fewer writes. INFO engine has the debt."
            .to_owned(),
        LatencyEvent::ExpireCycle => "many keys, or large ones, expire at the same moment. Spread \
            their times."
            .to_owned(),
        LatencyEvent::ColdRead => "data was read from the disk or the bucket. A larger \
            memory-budget keeps more in memory; store-cache-size keeps a bucket's files on the \
            disk."
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_storage::latency::Spike;

    fn series(spikes: &[(u64, u64)]) -> SpikeSeries {
        let spikes = spikes.iter().map(|&(time_s, ms)| Spike { time_s, ms });
        SpikeSeries { spikes: spikes.collect(), max_ms: 500, sum_ms: 1200, count: 3 }
    }

    #[test]
    fn a_graph_has_a_column_for_each_spike() {
        let text =
            graph_text(LatencyEvent::Command, &series(&[(4, 300), (60, 400), (98, 500)]), 100);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "command - high 500 ms, low 300 ms (all time high 500 ms)");
        assert_eq!(lines[1], "-".repeat(80));
        assert_eq!(lines[2..6], ["  o", " _#", " ##", "_##"]);
        assert_eq!(lines[6..], ["", "142", "m0s", " s"]);
        let many: Vec<(u64, u64)> = (0..160).map(|n| (n, 5)).collect();
        let text = graph_text(LatencyEvent::ColdRead, &series(&many), 160);
        assert!(text.lines().all(|line| line.len() <= 80));
    }

    #[test]
    fn the_doctor_names_each_class_and_what_helps() {
        let mut settings = Settings::default();
        assert!(doctor_text(&[], &settings, 0).starts_with("Latency monitoring is off"));
        settings.latency_monitor_threshold_ms = 1;
        assert!(doctor_text(&[], &settings, 0).starts_with("No event has taken 1 ms"));
        let all = LatencyEvent::ALL.map(|event| (event, series(&[(10, 100), (30, 300)])));
        let text = doctor_text(&all, &settings, 50);
        assert!(text.contains(
            "2. command: 2 latency spikes (average 200ms, mean deviation 100ms, period 20.00 sec). \
            Worst all time event 500ms."
        ));
        for event in LatencyEvent::ALL {
            assert!(text.contains(&format!("\n- {}: ", event.name())), "{text}");
        }
        assert!(text.contains("commandlog-execution-slower-than 1000."));
    }
}
