//! Hands a recorded history to a checker.
//!
//! `judge linear FILE`: is every key's history linearizable? `judge serial FILE`: are the transactions strictly
//! serializable? The exit status is 0 for yes, 1 for no, 2 if the history could not be judged.

mod objects;

use adya::{History as Transactions, Opts, Valid, Workload};
use objects::{Event, linearizable};
use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;
use std::time::Duration;

/// Violations that are shown.
const SHOWN: usize = 5;

/// For each group of transactions that depend on each other.
const SEARCH: Duration = Duration::from_secs(60);

type Error = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let judged = match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["linear", file] => linear(file),
        ["serial", file] => serial(file),
        _ => Err("usage: judge linear|serial FILE".into()),
    };
    match judged {
        Ok(Some(true)) => ExitCode::SUCCESS,
        Ok(Some(false)) => ExitCode::from(1),
        Ok(None) => ExitCode::from(2),
        Err(error) => {
            eprintln!("judge: {error}");
            ExitCode::from(2)
        }
    }
}

fn linear(file: &str) -> Result<Option<bool>, Error> {
    let mut keys: BTreeMap<String, Vec<Event>> = BTreeMap::new();
    for line in fs::read_to_string(file)?.lines() {
        let event: Event = serde_json::from_str(line)?;
        keys.entry(event.key.clone()).or_default().push(event);
    }
    let total: usize = keys.values().map(Vec::len).sum();
    let open = keys.values().flatten().filter(|event| event.back.is_none()).count();
    let mut bad = 0;
    let number = keys.len();
    for (key, events) in keys {
        if linearizable(events)? {
            continue;
        }
        bad += 1;
        if bad <= SHOWN {
            println!("  the history of {key} is not linearizable");
        }
    }
    println!("{total} operations, {open} of them open, on {number} keys: {bad} not linearizable");
    Ok((total > 0).then_some(bad == 0))
}

fn serial(file: &str) -> Result<Option<bool>, Error> {
    let history = Transactions::parse(&fs::read_to_string(file)?)?;
    let opts =
        Opts { models: vec!["strict-serializable".into()], timeout: SEARCH, ..Opts::default() };
    let report = adya::check(&history, Workload::ListAppend, &opts);
    for anomaly in report.anomalies.values().flatten().take(SHOWN) {
        println!("  {}: {}", anomaly.kind, anomaly.explanation);
    }
    println!("{} events, anomalies: {:?}", history.ops.len(), report.anomaly_types);
    Ok(match report.valid {
        Valid::True => Some(true),
        Valid::False => Some(false),
        Valid::Unknown => None,
    })
}
