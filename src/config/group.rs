//! The sizes of majorities in a group of a primary and its replicas (`repl-group-size`, RFC 18).

/// Returns the number of replicas that have to confirm a write. `group`: number of servers; 0: not
/// known. `wanted`: the least number.
pub(super) fn confirming(group: usize, wanted: usize) -> usize {
    // With the primary, they are a majority.
    wanted.max(group / 2).max(1)
}

/// Returns the number of other servers that have to be heard before one takes over: each write is on
/// one of these, or on it.
pub(super) fn awaited(group: usize, confirming: usize) -> usize {
    group.saturating_sub(1 + confirming)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_majority_has_one_server_of_those_that_are_heard() {
        assert_eq!([0, 1, 2, 3, 4, 5].map(|group| confirming(group, 0)), [1, 1, 1, 1, 2, 2]);
        assert_eq!(
            [0, 2, 3, 4, 5].map(|group| awaited(group, confirming(group, 0))),
            [0, 0, 1, 1, 2]
        );
        assert_eq!((confirming(5, 4), awaited(5, 4), awaited(3, 7)), (4, 0, 0));
        for group in 2..20 {
            for wanted in 0..group {
                let confirming = confirming(group, wanted);
                let heard = 1 + awaited(group, confirming);
                assert!(1 + confirming + heard > group, "{group} {wanted}");
                assert!(2 * (1 + confirming) > group, "two primaries of {group}");
                assert!(awaited(group, confirming) <= confirming, "{group} {wanted}");
            }
        }
    }
}
