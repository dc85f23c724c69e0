//! Tests of whole payloads.
