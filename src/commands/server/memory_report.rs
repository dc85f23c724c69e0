//! The report of MEMORY DOCTOR.

/// Resident bytes below which there is nothing to say about the shares of memory.
const LITTLE: u64 = 64 << 20;

/// Figures that the report is made from, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MemoryFigures {
    pub(super) resident: u64,
    pub(super) peak: u64,
    /// `memory-budget`.
    pub(super) budget: u64,
    /// Share of decoded values in the budget, and the part of it that other memory takes.
    pub(super) values_share: u64,
    pub(super) squeezed: u64,
    /// Pending rows, and the bytes beyond which writers wait.
    pub(super) pending: u64,
    pub(super) pending_limit: u64,
    /// Memory of all connections, and its limit; the greatest: none.
    pub(super) clients: u64,
    pub(super) clients_limit: u64,
    /// Lua VMs, scripts and libraries.
    pub(super) scripts: u64,
}

/// Returns the report: a line for each fault that the figures show, with its remedy.
pub(super) fn doctor_text(memory: &MemoryFigures) -> String {
    let faults = faults(memory);
    if faults.is_empty() {
        return format!(
            "Nothing to complain about: {} MiB of memory-budget's {} MiB are in use.\n",
            memory.resident >> 20,
            memory.budget >> 20
        );
    }
    let mut text = "Some figures of the memory are not as they should be:\n\n".to_owned();
    for fault in faults {
        text.push_str(" * ");
        text.push_str(&fault);
        text.push('\n');
    }
    text
}

fn faults(memory: &MemoryFigures) -> Vec<String> {
    let mib = |bytes: u64| bytes >> 20;
    let mut faults = Vec::new();
    if memory.resident > memory.budget + memory.budget / 10 {
        faults.push(format!(
            "More than the budget: the process takes {} MiB, memory-budget is {} MiB. Commands on \
            whole collections and large requests take memory for a while (COMMANDLOG); if it \
            stays, set a smaller memory-budget.",
            mib(memory.resident),
            mib(memory.budget)
        ));
    }
    if memory.resident > LITTLE && memory.peak > memory.resident / 2 * 3 {
        faults.push(format!(
            "A peak in the past: {} MiB, now {} MiB. That is no fault in itself; look for the \
            large commands of that time (COMMANDLOG).",
            mib(memory.peak),
            mib(memory.resident)
        ));
    }
    if memory.squeezed > memory.values_share / 4 {
        faults.push(format!(
            "Other memory crowds decoded values out: {} of their {} MiB. Look at clients and \
            scripts below, and at memory-budget.",
            mib(memory.squeezed),
            mib(memory.values_share)
        ));
    }
    if memory.pending > memory.pending_limit / 10 * 9 && memory.pending_limit > 0 {
        faults.push(format!(
            "Rows wait for the engines: {} of {} MiB. Writers are slowed by that: a faster disk, \
            or more background-workers.",
            mib(memory.pending),
            mib(memory.pending_limit)
        ));
    }
    if memory.clients > memory.clients_limit / 2 {
        faults.push(format!(
            "Large client buffers: {} MiB, at {} MiB those that take most are closed. CLIENT LIST \
            names them (tot-mem).",
            mib(memory.clients),
            mib(memory.clients_limit)
        ));
    }
    if memory.scripts > memory.budget / 8 {
        faults.push(format!(
            "Many scripts: {} MiB. Give scripts their values as arguments instead of writing them \
            into their text; SCRIPT FLUSH forgets all.",
            mib(memory.scripts)
        ));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn each_fault_is_named() {
        let sound = MemoryFigures {
            resident: 500 * MIB,
            peak: 600 * MIB,
            budget: 1000 * MIB,
            values_share: 500 * MIB,
            pending: 10 * MIB,
            pending_limit: 100 * MIB,
            clients_limit: u64::MAX,
            ..MemoryFigures::default()
        };
        assert!(doctor_text(&sound).starts_with("Nothing to complain about: 500 MiB"));
        let faulty = [
            (MemoryFigures { resident: 1200 * MIB, peak: 1200 * MIB, ..sound }, "More than"),
            (MemoryFigures { peak: 900 * MIB, ..sound }, "A peak in the past"),
            (MemoryFigures { squeezed: 200 * MIB, ..sound }, "Other memory crowds"),
            (MemoryFigures { pending: 95 * MIB, ..sound }, "Rows wait"),
            (
                MemoryFigures { clients: 60 * MIB, clients_limit: 100 * MIB, ..sound },
                "Large client",
            ),
            (MemoryFigures { scripts: 200 * MIB, ..sound }, "Many scripts"),
        ];
        for (figures, name) in faulty {
            let text = doctor_text(&figures);
            assert!(text.matches(" * ").count() == 1 && text.contains(name), "{text}");
        }
    }
}
