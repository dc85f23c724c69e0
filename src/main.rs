//! The `flagstone` program: reads its configuration and runs the server.

use flagstone::config::{Config, Startup};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let config = match Config::load_process() {
        Ok(Startup::Run(config)) => config,
        Ok(Startup::Print(text)) => {
            println!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("flagstone: {error}");
            return ExitCode::from(2);
        }
    };
    match flagstone::server::run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("flagstone: {error:#}");
            ExitCode::FAILURE
        }
    }
}
