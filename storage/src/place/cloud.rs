//! Cloud stores, configured by the environment, with bounded waiting.

use anyhow::{Result, bail};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig};
use std::env;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Time limit for connecting, ...
const CONNECT_TIMEOUT: &str = "3s";

/// ... and for a whole request, including an upload of many MiB.
const REQUEST_TIMEOUT: &str = "30s";

/// Limits on the retries of a request after an error of the store or the network: their number, and
/// their time. Callers that need an answer sooner have limits of their own.
const RETRIES: usize = 6;
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);

/// The pauses between retries: the first and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

fn retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig { init_backoff: FIRST_PAUSE, max_backoff: LONGEST_PAUSE, base: 2.0 },
        max_retries: RETRIES,
        retry_timeout: RETRY_TIMEOUT,
    }
}

/// Default time limits, unless the environment sets others.
const TIMEOUTS: [(ClientConfigKey, &str); 2] = [
    (ClientConfigKey::ConnectTimeout, CONNECT_TIMEOUT),
    (ClientConfigKey::Timeout, REQUEST_TIMEOUT),
];

pub(super) fn s3(bucket: &str) -> Result<Arc<dyn ObjectStore>> {
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retries());
    let is_set = |builder: &AmazonS3Builder, key| builder.get_config_value(&key).is_some();
    for (key, value) in TIMEOUTS {
        if !is_set_in_env("AWS", key) {
            builder = builder.with_config(AmazonS3ConfigKey::Client(key), value);
        }
    }
    let keys = [
        AmazonS3ConfigKey::AccessKeyId,
        AmazonS3ConfigKey::SecretAccessKey,
        AmazonS3ConfigKey::WebIdentityTokenFile,
        AmazonS3ConfigKey::ContainerCredentialsRelativeUri,
        AmazonS3ConfigKey::ContainerCredentialsFullUri,
        // A user who sets it wants the role of the machine.
        AmazonS3ConfigKey::MetadataEndpoint,
    ];
    let skips = builder.get_config_value(&AmazonS3ConfigKey::SkipSignature);
    if !is_yes(skips.as_deref()) && !keys.into_iter().any(|key| is_set(&builder, key)) {
        bail!(
            "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or \
             AWS_METADATA_ENDPOINT=http://169.254.169.254 for the role of the machine"
        );
    }
    let endpoint = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint]
        .iter()
        .find_map(|key| builder.get_config_value(key));
    let allow = builder.get_config_value(&AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp));
    refuse_http(endpoint.as_deref(), allow.as_deref(), "AWS")?;
    Ok(Arc::new(builder.build()?))
}

pub(super) fn gcs(bucket: &str) -> Result<Arc<dyn ObjectStore>> {
    let mut builder =
        GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket).with_retry(retries());
    for (key, value) in TIMEOUTS {
        if !is_set_in_env("GOOGLE", key) {
            builder = builder.with_config(GoogleConfigKey::Client(key), value);
        }
    }
    let keys = [
        GoogleConfigKey::ServiceAccount,
        GoogleConfigKey::ServiceAccountKey,
        GoogleConfigKey::ApplicationCredentials,
        GoogleConfigKey::BearerToken,
    ];
    let skips = builder.get_config_value(&GoogleConfigKey::SkipSignature);
    let login = env::home_dir().map_or_else(PathBuf::new, |home| {
        home.join(".config/gcloud/application_default_credentials.json")
    });
    let is_known = is_yes(skips.as_deref())
        || keys.iter().any(|key| builder.get_config_value(key).is_some())
        || env::var_os("GCE_METADATA_HOST").is_some()
        || login.exists();
    if !is_known {
        bail!(
            "no credentials: set GOOGLE_APPLICATION_CREDENTIALS to a file with a key, or \
             GCE_METADATA_HOST=metadata.google.internal for the account of the machine"
        );
    }
    let endpoint = builder.get_config_value(&GoogleConfigKey::BaseUrl);
    let allow = builder.get_config_value(&GoogleConfigKey::Client(ClientConfigKey::AllowHttp));
    refuse_http(endpoint.as_deref(), allow.as_deref(), "GOOGLE")?;
    Ok(Arc::new(builder.build()?))
}

pub(super) fn azure(container: &str) -> Result<Arc<dyn ObjectStore>> {
    let mut builder =
        MicrosoftAzureBuilder::from_env().with_container_name(container).with_retry(retries());
    for (key, value) in TIMEOUTS {
        if !is_set_in_env("AZURE", key) {
            builder = builder.with_config(AzureConfigKey::Client(key), value);
        }
    }
    let value = |key| builder.get_config_value(&key);
    let is_true = |key| is_yes(value(key).as_deref());
    let is_emulated = is_true(AzureConfigKey::UseEmulator);
    if !is_emulated && value(AzureConfigKey::AccountName).is_none() {
        bail!("no account: set AZURE_STORAGE_ACCOUNT_NAME");
    }
    let keys = [
        AzureConfigKey::AccessKey,
        AzureConfigKey::SasKey,
        AzureConfigKey::Token,
        AzureConfigKey::ClientSecret,
        AzureConfigKey::FederatedTokenFile,
        AzureConfigKey::FabricSessionToken,
        AzureConfigKey::CredentialType,
        // A user who sets it wants the identity of the machine.
        AzureConfigKey::MsiEndpoint,
    ];
    let is_known = is_emulated
        || is_true(AzureConfigKey::SkipSignature)
        || is_true(AzureConfigKey::UseAzureCli)
        || keys.into_iter().any(|key| value(key).is_some());
    if !is_known {
        bail!(
            "no credentials: set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_KEY, or \
             AZURE_CREDENTIAL_TYPE=managed_identity for the identity of the machine"
        );
    }
    let allow = value(AzureConfigKey::Client(ClientConfigKey::AllowHttp));
    let endpoint = value(AzureConfigKey::Endpoint).filter(|_| !is_emulated);
    refuse_http(endpoint.as_deref(), allow.as_deref(), "AZURE")?;
    Ok(Arc::new(builder.build()?))
}

/// Returns true if the environment has a setting of the client.
fn is_set_in_env(cloud: &str, key: ClientConfigKey) -> bool {
    env::var_os(format!("{cloud}_{}", key.as_ref().to_ascii_uppercase())).is_some()
}

/// Returns true if a setting is true in the builders' sense.
fn is_yes(value: Option<&str>) -> bool {
    let value = value.unwrap_or_default().to_ascii_lowercase();
    ["1", "true", "on", "yes", "y"].contains(&&*value)
}

/// Refuses HTTP, over which data can be read on its way, unless it is allowed explicitly.
fn refuse_http(endpoint: Option<&str>, allow: Option<&str>, cloud: &str) -> Result<()> {
    let is_http = endpoint.is_some_and(|url| url.starts_with("http://"));
    if is_http && !is_yes(allow) {
        bail!(
            "the endpoint {} is not encrypted: use https, or allow it by {cloud}_ALLOW_HTTP=true",
            endpoint.unwrap_or_default()
        );
    }
    Ok(())
}
