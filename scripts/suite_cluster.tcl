# Read at the end of the suite's tests/support/cluster_util.tcl and util.tcl (scripts/conformance spawn): makes the
# clusters of the tests as Flagstone's are made. The servers of a cluster share a bucket, a directory
# here, with as many shards as there are primaries; they need no CLUSTER MEET, ADDSLOTS or REPLICATE. A cluster of
# one server lies in its own directory.

# Servers that are started from now on share a bucket, until leave_bucket.
proc enter_bucket {shards} {
    set ::bucket "bucket+file://[file normalize [tmpdir bucket]]"
    set ::env(FLAGSTONE_STORE) $::bucket
    set ::env(FLAGSTONE_SHARDS) $shards
}

proc leave_bucket {} {
    unset -nocomplain ::env(FLAGSTONE_STORE) ::bucket
    set ::env(FLAGSTONE_SHARDS) $::own_shards
}

# Gives shard J to server J, so that the primaries have the slots which continuous_slot_allocation gives them.
proc allocate_shards {masters} {
    wait_for_cluster_size [llength $::servers]
    wait_for_cluster_state ok
    for {set j 0} {$j < $masters} {incr j} {
        # The servers, which share the shards out meanwhile, may call a move off.
        wait_for_condition 10 500 {
            [catch {exec $::env(FLAGSTONE_SUITE_SERVER) cluster move $j --to [R $j cluster myid] --store $::bucket 2>@1} said] == 0
        } else {
            fail "shard $j does not move: $said"
        }
    }
}

proc cluster_setup {masters replicas node_count slot_allocator replica_allocator code} {
    if {$node_count > 1} { allocate_shards $masters }
    wait_for_cluster_propagation
    wait_for_cluster_state ok
    uplevel 1 $code
}

proc start_cluster {masters replicas options code {slot_allocator continuous_slot_allocation} {replica_allocator default_replica_allocation}} {
    set node_count [expr $masters + $replicas]
    set code [list cluster_setup $masters $replicas $node_count $slot_allocator $replica_allocator $code]
    set settings [list cluster-enabled yes cluster-ping-interval 100 cluster-node-timeout 3000 cluster-slot-stats-enabled yes]
    set options [concat [list overrides $settings] $options]
    # The first server of the suite is the one that is started last.
    for {set i 0} {$i < $masters} {incr i} { set code [list start_server $options $code] }
    lappend options overrides [list cluster-replica yes]
    for {set i 0} {$i < $replicas} {incr i} { set code [list start_server $options $code] }
    set old_singledb $::singledb
    set ::singledb 1
    if {$node_count > 1} { enter_bucket $masters }
    uplevel 0 $code
    leave_bucket
    set ::singledb $old_singledb
}

# The suite reads this file more than once, and has not all of its own procedures the first time.
foreach {name own} {start_multiple_servers start_separate_servers wait_for_ofs_sync wait_for_offsets} {
    if {[info commands $own] eq {} && [info commands $name] ne {}} { rename $name $own }
}
if {![info exists ::own_shards]} { set ::own_shards $::env(FLAGSTONE_SHARDS) }

proc start_multiple_servers {num options code} {
    enter_bucket $num
    uplevel 1 [list start_separate_servers $num $options $code]
    leave_bucket
}

# The tests that meet their servers by themselves find them in one cluster.
proc join_nodes_in_cluster {} {
    wait_for_cluster_size [llength $::servers]
    return 1
}

proc cluster_allocate_slots {masters replicas} { allocate_shards $masters }

# Replicas of a cluster follow a bucket, and have no offsets to be compared.
proc wait_for_ofs_sync {primary replica} {
    if {![info exists ::bucket]} { return [wait_for_offsets $primary $replica] }
    assert_equal 1 [$primary wait 1 10000]
}
