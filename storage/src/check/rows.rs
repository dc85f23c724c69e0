//! Reads the rows of an engine in order.

use super::Findings;
use crate::encoding::prefix_range;
use crate::engine::{Engine, ScanLimit};
use anyhow::{Context, Result};
use bytes::Bytes;
use std::collections::VecDeque;
use std::ops::Range;

/// Rows that are read in one request, and their bytes unless it is a single one.
const PAGE: usize = 512;
const PAGE_BYTES: usize = 8 << 20;

/// The rows with a prefix, in order.
pub(super) struct EngineRows<'a> {
    engine: &'a Engine,
    findings: &'a Findings<'a>,
    left: Range<Vec<u8>>,
    page: VecDeque<(Bytes, Bytes)>,
    is_last: bool,
}

impl<'a> EngineRows<'a> {
    pub(super) fn new(engine: &'a Engine, findings: &'a Findings<'a>, prefix: &[u8]) -> Self {
        let left = prefix_range(prefix);
        Self { engine, findings, left, page: VecDeque::new(), is_last: false }
    }

    /// Returns the next row without consuming it.
    pub(super) async fn peek(&mut self) -> Result<Option<&(Bytes, Bytes)>> {
        if self.page.is_empty() && !self.is_last {
            let limit = ScanLimit { rows: PAGE, bytes: PAGE_BYTES, least: 1 };
            let page = self.engine.scan_page(false, self.left.clone(), limit).await;
            let (page, is_cut) =
                page.with_context(|| format!("rows from {} on", self.left.start.escape_ascii()))?;
            self.is_last = !is_cut;
            if let Some((last, _)) = page.last() {
                self.left.start = [last, &[0][..]].concat();
            }
            self.findings.read(page.len() as u64);
            self.page = page.into();
        }
        Ok(self.page.front())
    }

    pub(super) async fn next(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        self.peek().await?;
        Ok(self.page.pop_front())
    }
}
