//! The settings of `cjson`.

use std::ffi::c_int;

/// Indexes of the names `off`, `on`, `null` of a setting.
pub(crate) const OFF: c_int = 0;
pub(crate) const ON: c_int = 1;

/// Maximum number of digits of a written number.
pub(crate) const MAX_PRECISION: c_int = 14;

/// JsonSettings of a script. Tables made by `cjson.new` have their own.
#[derive(Clone, Copy)]
pub(crate) struct JsonSettings {
    pub(crate) sparse_convert: c_int,
    pub(crate) sparse_ratio: c_int,
    pub(crate) sparse_safe: c_int,
    pub(crate) encode_max_depth: c_int,
    pub(crate) decode_max_depth: c_int,
    pub(crate) encode_invalid_numbers: c_int,
    pub(crate) decode_invalid_numbers: c_int,
    pub(crate) encode_keep_buffer: c_int,
    pub(crate) precision: c_int,
}

impl Default for JsonSettings {
    fn default() -> Self {
        Self {
            sparse_convert: OFF,
            sparse_ratio: 2,
            sparse_safe: 10,
            encode_max_depth: 1000,
            decode_max_depth: 1000,
            encode_invalid_numbers: OFF,
            decode_invalid_numbers: ON,
            encode_keep_buffer: ON,
            precision: MAX_PRECISION,
        }
    }
}
