use super::*;
use object_store::{GetRange, ObjectStoreExt};
use proptest::prelude::*;
use tempfile::TempDir;

const SIZE: usize = 300_000;

fn content(seed: u8) -> Vec<u8> {
    (0..SIZE).map(|at| (at / 7) as u8 ^ seed).collect()
}

/// Returns a directory with `names`, all with the content of seed 0.
fn files(names: &[&str]) -> (TempDir, ShardFiles) {
    let dir = tempfile::tempdir().unwrap();
    let files = ShardFiles::new(dir.path(), Arc::default()).unwrap();
    for name in names {
        block_on_runtime(files.put(&Path::from(*name), content(0).into())).unwrap();
    }
    (dir, files)
}

/// Runs a task on a runtime, whose blocking threads serve the reads.
fn block_on_runtime<T>(task: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(task)
}

fn ranged(range: GetRange) -> GetOptions {
    GetOptions { range: Some(range), ..GetOptions::default() }
}

/// Reads a range.
fn get(
    store: &dyn ObjectStore,
    name: &str,
    range: GetRange,
) -> Result<(Bytes, ObjectMeta, Range<u64>)> {
    block_on_runtime(async {
        let result = store.get_opts(&Path::from(name), ranged(range)).await?;
        let (meta, range) = (result.meta.clone(), result.range.clone());
        Ok((result.bytes().await?, meta, range))
    })
}

fn is_kept(files: &ShardFiles, name: &str) -> bool {
    files.kept.get(files.number, &Path::from(name)).is_some()
}

fn any_range() -> impl Strategy<Value = GetRange> {
    let size = SIZE as u64;
    prop_oneof![
        4 => (0..size + 10, 0..200_000u64).prop_map(|(from, n)| GetRange::Bounded(from..from + n)),
        4 => (0..size, 0..5000u64).prop_map(|(from, n)| GetRange::Bounded(from..from + n)),
        1 => (0..size + 10).prop_map(GetRange::Offset),
        1 => (0..size + 10).prop_map(GetRange::Suffix),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn reads_are_those_of_the_local_store(ranges in proptest::collection::vec(any_range(), 1..8)) {
        let (dir, files) = files(&["db/compacted/a.sst"]);
        let local = LocalFileSystem::new_with_prefix(dir.path()).unwrap();
        for range in ranges {
            let expected = get(&local, "db/compacted/a.sst", range.clone());
            let found = get(&files, "db/compacted/a.sst", range);
            match (expected, found) {
                (Ok(expected), Ok(found)) => prop_assert_eq!(expected, found),
                (Err(expected), Err(found)) => {
                    prop_assert_eq!(expected.to_string(), found.to_string());
                }
                (expected, found) => prop_assert!(false, "{expected:?}, but {found:?}"),
            }
        }
    }
}

/// Returns the names of the files in a directory.
fn names(dir: &std::path::Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).collect()
}

#[test]
fn an_upload_has_its_name_when_it_is_complete() {
    let (dir, files) = files(&[]);
    let path = Path::from("db/compacted/a.sst");
    let content: Vec<u8> = (0..4).flat_map(content).collect();
    block_on_runtime(async {
        let mut upload = files.put_multipart(&path).await.unwrap();
        // More pieces than one system call takes, of many sizes; the parts are written out of
        // order.
        let (first, second) = content.split_at(content.len() / 3);
        let parts = [first, second].map(|part| {
            let sizes = (0..).map(|n| n * n % 1000);
            let mut rest = part;
            let pieces = sizes.map_while(|size| {
                let (piece, left) = rest.split_at_checked(size).unwrap_or((rest, &[]));
                let is_end = rest.is_empty();
                rest = left;
                (!is_end).then(|| Bytes::copy_from_slice(piece))
            });
            upload.put_part(pieces.collect())
        });
        for part in parts.into_iter().rev() {
            part.await.unwrap();
        }
        assert_eq!(names(&dir.path().join("db/compacted")), ["a.sst#1"]);
        assert_eq!(files.list(None).count().await, 0);
        upload.complete().await.unwrap();
        upload.complete().await.unwrap_err();
        drop(upload);
        assert_eq!(names(&dir.path().join("db/compacted")), ["a.sst"]);
        assert_eq!(files.get(&path).await.unwrap().bytes().await.unwrap(), content);
    });
}

#[test]
fn an_upload_that_fails_or_is_given_up_leaves_nothing() {
    let (dir, files) = files(&[]);
    std::fs::create_dir(dir.path().join("a.sst")).unwrap();
    block_on_runtime(async {
        let begin = async || {
            let mut upload = files.put_multipart(&Path::from("a.sst")).await.unwrap();
            upload.put_part(content(1).into()).await.unwrap();
            upload
        };
        drop(begin().await);
        let (mut aborted, mut failing) = (begin().await, begin().await);
        assert_eq!(names(dir.path()).len(), 3);
        aborted.abort().await.unwrap();
        let error = failing.complete().await.unwrap_err();
        assert!(error.to_string().contains("completing"), "{error}");
    });
    assert_eq!(names(dir.path()), ["a.sst"]);
}

#[test]
fn a_deleted_file_is_not_found() {
    let (_dir, files) = files(&["a.sst", "b.sst"]);
    for name in ["a.sst", "b.sst"] {
        get(&files, name, GetRange::Bounded(0..10)).unwrap();
        assert!(is_kept(&files, name));
    }
    block_on_runtime(files.delete(&Path::from("a.sst"))).unwrap();
    // Its space is free before the file is requested again.
    assert!(!is_kept(&files, "a.sst") && is_kept(&files, "b.sst"));
    let error = get(&files, "a.sst", GetRange::Bounded(0..10)).unwrap_err();
    assert!(matches!(error, object_store::Error::NotFound { .. }), "{error}");
}

#[test]
fn a_file_that_another_process_deletes_is_not_found() {
    let (dir, files) = files(&["a.sst"]);
    get(&files, "a.sst", GetRange::Bounded(0..10)).unwrap();
    std::fs::remove_file(dir.path().join("a.sst")).unwrap();
    let error = get(&files, "a.sst", GetRange::Bounded(0..10)).unwrap_err();
    assert!(matches!(error, object_store::Error::NotFound { .. }), "{error}");
    assert!(!is_kept(&files, "a.sst"));
}

#[test]
fn a_file_made_again_under_the_same_name_is_read() {
    let (_dir, files) = files(&["a.sst"]);
    let path = Path::from("a.sst");
    let first = |seed| {
        let (bytes, ..) = get(&files, "a.sst", GetRange::Bounded(1000..1010)).unwrap();
        assert_eq!(bytes, content(seed)[1000..1010]);
    };
    first(0);
    block_on_runtime(files.delete(&path)).unwrap();
    block_on_runtime(files.put(&path, content(1).into())).unwrap();
    first(1);
    // Overwritten in place, without a delete.
    block_on_runtime(files.put(&path, content(2).into())).unwrap();
    first(2);
}

#[test]
fn a_renamed_file_is_found_under_its_new_name_alone() {
    let (_dir, files) = files(&["a.sst"]);
    get(&files, "a.sst", GetRange::Bounded(0..10)).unwrap();
    block_on_runtime(files.rename(&Path::from("a.sst"), &Path::from("b.sst"))).unwrap();
    let error = get(&files, "a.sst", GetRange::Bounded(0..10)).unwrap_err();
    assert!(matches!(error, object_store::Error::NotFound { .. }), "{error}");
    get(&files, "b.sst", GetRange::Bounded(0..10)).unwrap();
}

#[test]
fn only_parts_of_files_with_rows_are_kept_open() {
    let (_dir, files) = files(&["db/manifest/1.manifest", "a.sst"]);
    get(&files, "db/manifest/1.manifest", GetRange::Bounded(0..10)).unwrap();
    block_on_runtime(files.get(&Path::from("a.sst"))).unwrap();
    block_on_runtime(files.head(&Path::from("a.sst"))).unwrap();
    assert!(files.kept.files().files.is_empty());
}

#[test]
fn those_read_last_are_kept() {
    let names: Vec<String> = (0..KEPT_FILES + 10).map(|n| format!("{n}.sst")).collect();
    let dir = tempfile::tempdir().unwrap();
    let files = ShardFiles::new(dir.path(), Arc::default()).unwrap();
    for name in &names {
        std::fs::write(dir.path().join(name), b"rows").unwrap();
        get(&files, name, GetRange::Bounded(0..4)).unwrap();
        get(&files, &names[0], GetRange::Bounded(0..4)).unwrap();
        assert!(files.kept.files().files.len() <= KEPT_FILES);
    }
    assert_eq!(files.kept.files().files.len(), KEPT_FILES);
    assert!(is_kept(&files, &names[0]) && !is_kept(&files, &names[1]));
    assert!(is_kept(&files, &names[KEPT_FILES]));
}

#[test]
fn two_shards_share_the_files_that_are_kept_but_not_their_names() {
    let kept = Arc::<OpenFiles>::default();
    let dirs = [0, 1].map(|_| tempfile::tempdir().unwrap());
    let stores = [0, 1].map(|n| ShardFiles::new(dirs[n].path(), kept.clone()).unwrap());
    for (seed, store) in stores.iter().enumerate() {
        block_on_runtime(store.put(&Path::from("a.sst"), content(seed as u8).into())).unwrap();
    }
    for _ in 0..2 {
        for (seed, store) in stores.iter().enumerate() {
            let (bytes, ..) = get(store, "a.sst", GetRange::Bounded(0..100)).unwrap();
            assert_eq!(bytes, content(seed as u8)[..100]);
        }
    }
    assert_eq!(kept.files().files.len(), 2);
}
