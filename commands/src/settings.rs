//! The settings that the commands on keys read.

use flagstone_storage::value::AccessCounting;

/// Limits of sizes, and of encodings. Sizes are in bytes. The names are those of the directives
/// (`docs/compatibility.md`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataSettings {
    pub proto_max_bulk_len: usize,
    /// Bytes of a value that a command makes from fewer: SORT … STORE with GET, RESTORE.
    pub value_max_made: usize,
    pub hash_max_listpack_entries: usize,
    pub hash_max_listpack_value: usize,
    /// Size of a node. Positive: number of elements. -1 to -5: 4, 8, 16, 32, 64 KiB.
    pub list_max_listpack_size: i32,
    pub set_max_intset_entries: usize,
    pub set_max_listpack_entries: usize,
    pub set_max_listpack_value: usize,
    pub zset_max_listpack_entries: usize,
    pub zset_max_listpack_value: usize,
    pub stream_node_max_bytes: usize,
    pub stream_node_max_entries: u64,
    pub hll_sparse_max_bytes: usize,
    /// How accesses are counted, if `maxmemory-policy` does so (LFU): then OBJECT FREQ has a reply,
    /// and OBJECT IDLETIME has none.
    pub counts_accesses: Option<AccessCounting>,
    /// True if there is one database, and commands that name keys of several slots are refused.
    pub cluster_enabled: bool,
    pub rdbcompression: bool,
    /// True with `rdb-version-check relaxed`: payloads of newer versions are tried.
    pub rdb_newer_versions: bool,
}

impl Default for DataSettings {
    /// Returns the defaults of the directives.
    fn default() -> Self {
        Self {
            proto_max_bulk_len: 512 << 20,
            value_max_made: 512 << 20,
            hash_max_listpack_entries: 512,
            hash_max_listpack_value: 64,
            list_max_listpack_size: -2,
            set_max_intset_entries: 512,
            set_max_listpack_entries: 128,
            set_max_listpack_value: 64,
            zset_max_listpack_entries: 128,
            zset_max_listpack_value: 64,
            stream_node_max_bytes: 4096,
            stream_node_max_entries: 100,
            hll_sparse_max_bytes: 3000,
            counts_accesses: None,
            cluster_enabled: false,
            rdbcompression: true,
            rdb_newer_versions: false,
        }
    }
}
