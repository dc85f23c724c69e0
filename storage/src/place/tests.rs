use super::Place;
use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::sync::Arc;

fn error(url: &str) -> String {
    format!("{:#}", Place::parse(url).expect_err(url))
}

#[test]
fn directories_are_named_by_path_or_url() {
    for (url, dir) in [
        ("/some/dir", "/some/dir"),
        ("file:///some/dir", "/some/dir"),
        ("file://localhost/some/dir", "/some/dir"),
        ("file:/some/dir", "/some/dir"),
        ("/with space/and:colon", "/with space/and:colon"),
    ] {
        let place = Place::parse(url).expect(url);
        assert_eq!(place.dir().expect(url), std::path::Path::new(dir), "{url}");
    }
    let relative = Place::parse("data").expect("a relative path");
    assert!(relative.dir().expect("local").is_absolute());
    assert_eq!(relative.to_string(), "data");
}

#[test]
fn a_place_beside_another_is_not_in_it() {
    for (url, beside) in [("/fast/log", "/fast/log-archive"), ("/fast/log/", "/fast/log-archive")] {
        let place = Place::parse(url).expect(url).beside("-archive");
        assert_eq!(place.dir().expect(url), std::path::Path::new(beside));
        assert_eq!(place.root().as_ref(), "fast/log-archive");
        assert_eq!(place.to_string(), beside);
    }
    let memory = Place::parse("memory:a/log").expect("memory");
    let beside = memory.beside("-archive");
    assert_eq!(
        (beside.root().as_ref(), &*beside.to_string()),
        ("a/log-archive", "memory:a/log-archive")
    );
    assert!(memory.is_in_store_of(&beside));
    assert!(!memory.is_in_store_of(&Place::parse("memory:a/log").expect("another store")));
    let local = Place::parse("/fast").expect("a directory");
    assert!(!local.is_in_store_of(&memory) && !local.is_in_store_of(&local));
    let bucket = |url: &str| Place::within(Arc::new(InMemory::new()), Path::default(), url);
    assert!(bucket("s3://one/a").is_in_store_of(&bucket("s3://one")));
    assert!(!bucket("s3://one/a").is_in_store_of(&bucket("s3://other/a")));
    assert!(!bucket("s3://one/a").is_in_store_of(&bucket("gs://one/a")));
}

#[test]
fn an_url_of_no_store_is_refused_with_the_accepted_forms() {
    assert!(error("http://host/bucket").contains("s3://bucket/prefix"));
    assert!(error("file://host/path").contains("file:///path"));
    assert!(error("s3:///prefix").contains("no bucket"));
    assert!(error("").contains("names no directory"));
}

#[test]
fn secrets_in_a_url_are_refused_and_not_shown() {
    let text = error("s3://key:secret@bucket/prefix");
    assert!(text.contains("environment") && !text.contains("secret"), "{text}");
    let text = error("az://container/x?sig=secret");
    assert!(text.contains("environment") && !text.contains("secret"), "{text}");
}

#[tokio::test]
async fn places_below_a_place_share_its_store() {
    let memory = Place::parse("memory:base").expect("memory");
    let below = memory.join("shard-1/db");
    assert_eq!(below.root().as_ref(), "base/shard-1/db");
    assert_eq!(below.to_string(), "memory:base/shard-1/db");
    let payload = PutPayload::from_static(b"x");
    below.store().put(&below.path("a/b"), payload).await.expect("put");
    let read = memory.store().get(&memory.path("shard-1/db/a/b")).await.expect("get");
    assert_eq!(read.meta.size, 1);
}

#[tokio::test]
async fn a_local_place_is_made_when_it_is_written_to() {
    let temporary = tempfile::tempdir().expect("temporary directory");
    let dir = temporary.path().join("not yet there");
    let place = Place::parse(dir.to_str().expect("UTF-8")).expect("local");
    assert!(!dir.exists());
    let below = place.join("sub");
    below.store().put(&below.path("file"), PutPayload::from_static(b"x")).await.expect("put");
    assert_eq!(std::fs::read(dir.join("sub/file")).expect("read"), b"x");
    assert_eq!(below.dir().expect("local"), dir.join("sub"));
}

#[tokio::test]
async fn a_local_place_may_be_named_by_a_way_up() {
    let temporary = tempfile::tempdir().expect("temporary directory");
    let root = temporary.path().canonicalize().expect("a path");
    std::fs::create_dir(root.join("here")).expect("a directory");
    std::os::unix::fs::symlink(root.join("here"), root.join("link")).expect("a link");
    for (named, dir) in [
        ("here/../there", "there"),
        ("not/yet/../../there", "there"),
        ("link/../there", "there"),
        ("link/there", "link/there"),
    ] {
        let place = Place::parse(root.join(named).to_str().expect("UTF-8")).expect("local");
        assert_eq!(place.dir(), Some(&*root.join(dir)), "{named}");
        place
            .store()
            .put(&place.path(&named.replace(['/', '.'], "-")), PutPayload::from_static(b"x"))
            .await
            .expect("put");
    }
    assert_eq!(std::fs::read_dir(root.join("there")).expect("listed").count(), 3);
}

/// A store that overwrites existing objects: always, or only upon concurrent requests.
#[derive(Debug)]
struct Careless {
    objects: InMemory,
    always: bool,
}

impl std::fmt::Display for Careless {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Careless")
    }
}

#[async_trait]
impl ObjectStore for Careless {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let exists = self.objects.head(location).await.is_ok();
        tokio::task::yield_now().await;
        let mode = if exists && !self.always { options.mode } else { PutMode::Overwrite };
        self.objects.put_opts(location, payload, mode.into()).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.objects.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.objects.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

#[tokio::test]
async fn a_store_that_creates_what_exists_is_refused() {
    for always in [true, false] {
        let store = Careless { objects: InMemory::new(), always };
        let place = Place::within(Arc::new(store), Path::from("x"), "careless:");
        let error = format!("{:#}", place.preflight().await.expect_err("it overwrites"));
        assert!(error.contains("two servers could write to one journal"), "{error}");
    }
}

/// What is stored there can be served for long: the server must start.
#[tokio::test]
async fn a_store_that_deletes_nothing_is_used() {
    let client = super::sim::Sim::new(1).client(0);
    client.keeps.store(true, std::sync::atomic::Ordering::SeqCst);
    let place = Place::within(client.clone(), Path::from("x"), "sim:");
    place.preflight().await.expect("with a warning");
}

#[tokio::test]
async fn a_store_that_keeps_to_conditions_is_left_as_it_was() {
    let place = Place::parse("memory:x").expect("memory");
    place.preflight().await.expect("it creates once");
    assert_eq!(place.store().list(None).count().await, 0);
}

#[tokio::test]
async fn a_directory_used_like_a_bucket_has_conditional_puts_and_no_lock() {
    let dir = tempfile::tempdir().expect("a directory");
    let url = format!("bucket+file://{}/a/b", dir.path().display());
    let place = Place::parse(&url).expect("a place");
    assert_eq!((place.dir(), &*place.to_string()), (None, &*url));
    place.preflight().await.expect("it can be used");
    assert!(place.is_in_store_of(&Place::parse("bucket+file:///elsewhere").expect("a place")));
    assert!(error("bucket+file://host/a").contains("bucket+file:///path"));
}
