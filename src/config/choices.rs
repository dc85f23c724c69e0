//! Settings that have one of a fixed set of words.

/// A setting with a fixed set of words.
pub(super) trait Choice: Sized {
    fn from_word(word: &str) -> Option<Self>;
}

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name { $($(#[$variant_doc])* $variant),+ }

        impl $name {
            /// Returns its word in the configuration.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl Choice for $name {
            fn from_word(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

choice! {
    /// State of a write that is acknowledged.
    AppendFsync {
        /// It is on disk.
        Always = "always",
        /// It is in the journal's file, and on disk within a bound.
        Everysec = "everysec",
        /// It is in the journal's file.
        No = "no",
    }
}
choice! {
    /// State of a write at replicas, for which its reply waits.
    #[derive(Default)]
    ReplAck {
        /// Replies wait for no replica.
        #[default]
        None = "none",
        /// A replica has applied it.
        Async = "async",
        /// A replica has it on disk.
        Sync = "sync",
    }
}
choice! {
    /// The part of a server in a cluster of several.
    #[derive(Default)]
    ClusterReplica {
        /// It owns shards.
        #[default]
        No = "no",
        /// It owns nothing, and shows the shards of others.
        Yes = "yes",
        /// The same, until an owner is lost.
        Standby = "standby",
    }
}
choice! {
    /// How connections are spread over threads.
    AcceptMode {
        /// Every thread listens and the kernel chooses.
        Reuseport = "reuseport",
        /// One listener hands connections on in turn.
        RoundRobin = "round-robin",
    }
}
choice! {
    /// Compression of the blocks of the engine's new files.
    Compression {
        None = "none",
        Lz4 = "lz4",
        /// Zstandard, level 3.
        Zstd = "zstd",
    }
}
choice! {
    /// The least level that is logged.
    LogLevel {
        Debug = "debug",
        Verbose = "verbose",
        Notice = "notice",
        Warning = "warning",
        Nothing = "nothing",
    }
}
choice! {
    /// Form of the lines of the log.
    LogFormat {
        /// For people.
        Text = "text",
        /// The same, by the reference's name.
        Legacy = "legacy",
        Logfmt = "logfmt",
        Json = "json",
    }
}
choice! {
    /// The service manager that is told of the server's state.
    SupervisedBy {
        No = "no",
        Systemd = "systemd",
        /// systemd, if it has started the process.
        Auto = "auto",
    }
}
choice! {
    /// TLS on the HTTP port.
    HttpTls {
        No = "no",
        Yes = "yes",
        /// With certificates of clients.
        Mutual = "mutual",
    }
}
choice! {
    /// Clients that may use something dangerous.
    ProtectedAction {
        No = "no",
        Yes = "yes",
        /// Clients on the same machine.
        Local = "local",
    }
}
choice! {
    /// Certificates of clients.
    TlsClientAuth {
        /// They are not asked for.
        No = "no",
        /// A client needs one.
        Yes = "yes",
        /// A client may have one, which is checked then.
        Optional = "optional",
    }
}
choice! {
    /// Treatment of RDB files of a newer version.
    RdbVersionCheck { Strict = "strict", Relaxed = "relaxed" }
}
choice! {
    /// Kind of address that a cluster client is told.
    EndpointType { Ip = "ip", Hostname = "hostname", UnknownEndpoint = "unknown-endpoint" }
}
choice! {
    /// Keys to evict when `maxmemory` is reached.
    MaxmemoryPolicy {
        VolatileLru = "volatile-lru",
        VolatileLfu = "volatile-lfu",
        VolatileRandom = "volatile-random",
        VolatileTtl = "volatile-ttl",
        AllkeysLru = "allkeys-lru",
        AllkeysLfu = "allkeys-lfu",
        AllkeysRandom = "allkeys-random",
        Noeviction = "noeviction",
    }
}

impl ProtectedAction {
    /// Returns true if a client may act; `client_is_local`: it is on the same machine.
    pub const fn allows(self, client_is_local: bool) -> bool {
        match self {
            Self::Yes => true,
            Self::Local => client_is_local,
            Self::No => false,
        }
    }
}
