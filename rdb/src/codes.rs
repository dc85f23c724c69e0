//! Numbers of the format: versions, types, opcodes.

/// The RDB version that Valkey 8.1 and Redis 7.2 write.
pub(crate) const VERSION: u16 = 11;
/// Version of files with the types of Redis 7.0.
pub(crate) const VERSION_OLD_TYPES: u16 = 10;
/// The RDB version that Redis 7.4 and 8.0 write.
pub(crate) const VERSION_FIELD_EXPIRY: u16 = 12;
/// The last RDB version that Valkey leaves to other servers; those versions are not understood.
pub(crate) const VERSION_FOREIGN_MAX: u16 = 79;
/// Bytes of version and checksum at a payload's end.
pub const FOOTER_LEN: usize = 10;
/// Maximum expiry of a hash field in Redis 8.0, in milliseconds since 1970.
pub(crate) const FIELD_EXPIRY_MAX_MS: u64 = 0xffff_ffff_fffe;

/// The first byte of a payload: the type of the object and its encoding.
pub(crate) mod object_type {
    pub(crate) const STRING: u8 = 0;
    pub(crate) const LIST: u8 = 1;
    pub(crate) const SET: u8 = 2;
    pub(crate) const ZSET: u8 = 3;
    pub(crate) const HASH: u8 = 4;
    pub(crate) const ZSET_2: u8 = 5;
    pub(crate) const MODULE_PRE_GA: u8 = 6;
    pub(crate) const MODULE_2: u8 = 7;
    pub(crate) const HASH_ZIPMAP: u8 = 9;
    pub(crate) const LIST_ZIPLIST: u8 = 10;
    pub(crate) const SET_INTSET: u8 = 11;
    pub(crate) const ZSET_ZIPLIST: u8 = 12;
    pub(crate) const HASH_ZIPLIST: u8 = 13;
    pub(crate) const LIST_QUICKLIST: u8 = 14;
    pub(crate) const STREAM_LISTPACKS: u8 = 15;
    pub(crate) const HASH_LISTPACK: u8 = 16;
    pub(crate) const ZSET_LISTPACK: u8 = 17;
    pub(crate) const LIST_QUICKLIST_2: u8 = 18;
    pub(crate) const STREAM_LISTPACKS_2: u8 = 19;
    pub(crate) const SET_LISTPACK: u8 = 20;
    pub(crate) const STREAM_LISTPACKS_3: u8 = 21;
    /// The last type common to Redis and later versions of Valkey; greater ones differ in meaning.
    pub(crate) const LAST_COMMON: u8 = STREAM_LISTPACKS_3;
    /// The form that release candidates of Redis 7.4 wrote.
    pub(crate) const HASH_METADATA_PRE_GA: u8 = 22;
    pub(crate) const HASH_LISTPACK_EX_PRE_GA: u8 = 23;
    pub(crate) const HASH_METADATA: u8 = 24;
    pub(crate) const HASH_LISTPACK_EX: u8 = 25;
}

/// The first byte of items other than keys.
pub(crate) mod opcode {
    /// Size of a slot: its number, keys, keys with an expiry.
    pub(crate) const SLOT_INFO: u8 = 244;
    /// A library follows: its code.
    pub(crate) const FUNCTION: u8 = 245;
    /// A library as release candidates of Redis 7.0 wrote it.
    pub(crate) const FUNCTION_PRE_GA: u8 = 246;
    /// Data of a module beside keys.
    pub(crate) const MODULE_AUX: u8 = 247;
    /// Seconds since the next key was used.
    pub(crate) const IDLE: u8 = 248;
    /// The access counter of the next key.
    pub(crate) const FREQ: u8 = 249;
    /// A name and a value with information about the file.
    pub(crate) const AUX: u8 = 250;
    /// Number of keys of the database, and of keys with an expiry.
    pub(crate) const RESIZE: u8 = 251;
    /// Expiry of the next key.
    pub(crate) const EXPIRE_MS: u8 = 252;
    pub(crate) const EXPIRE_S: u8 = 253;
    /// The number of the database of the following keys.
    pub(crate) const DATABASE: u8 = 254;
    pub(crate) const END: u8 = 255;
}

/// The first byte of each part of a module's value.
pub(crate) mod module_opcode {
    pub(crate) const END: u64 = 0;
    pub(crate) const SIGNED: u64 = 1;
    pub(crate) const UNSIGNED: u64 = 2;
    pub(crate) const FLOAT: u64 = 3;
    pub(crate) const DOUBLE: u64 = 4;
    pub(crate) const STRING: u64 = 5;
}

/// Form of a quicklist node.
pub(crate) mod quicklist_node {
    /// A single element.
    pub(crate) const PLAIN: u64 = 1;
    /// A listpack of elements.
    pub(crate) const PACKED: u64 = 2;
}

/// The first byte of an RDB length and of a string that is not stored as it is.
pub(crate) mod length {
    pub(crate) const BITS_32: u8 = 0x80;
    pub(crate) const BITS_64: u8 = 0x81;
    pub(crate) const INT8: u8 = 0xc0;
    pub(crate) const INT16: u8 = 0xc1;
    pub(crate) const INT32: u8 = 0xc2;
    pub(crate) const LZF: u8 = 0xc3;
}
