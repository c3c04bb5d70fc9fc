//! Single writer: conditions, reads and removals.

use bytes::Bytes;
use futures::FutureExt;

use super::{Check, Checked, Suite, failed, same};
use crate::store::{Get, Object, PutAnswer, Version, When};

pub(super) const CHECKS: &[Check] = &[
    ("create when absent", |suite| create(suite).boxed()),
    ("replace when unchanged", |suite| replace(suite).boxed()),
    ("replace a missing object", |suite| gone(suite).boxed()),
    ("read unless unchanged", |suite| read_unless(suite).boxed()),
    ("write without condition", |suite| always(suite).boxed()),
    ("remove", |suite| remove(suite).boxed()),
    ("bodies", |suite| bodies(suite).boxed()),
];

async fn put(suite: &Suite, key: &str, body: &'static str, when: &When) -> Result<PutAnswer, String> {
    suite
        .store
        .put(key, Bytes::from_static(body.as_bytes()), when)
        .await
        .map_err(|failure| failed(failure.error))
}

async fn written(suite: &Suite, key: &str, body: &'static str, when: &When) -> Result<Version, String> {
    match put(suite, key, body, when).await? {
        PutAnswer::Written(version) => Ok(version),
        PutAnswer::Refused => Err(format!("{when:?} was refused although it holds")),
    }
}

async fn refused(suite: &Suite, key: &str, when: &When) -> Checked {
    same("the answer", &put(suite, key, "intruder", when).await?, &PutAnswer::Refused)
}

async fn read(suite: &Suite, key: &str, unless: Option<&Version>) -> Result<Get, String> {
    suite.store.get(key, unless).await.map_err(|failure| failed(failure.error))
}

fn found(body: &'static str, version: Version) -> Get {
    Get::Found(Object { body: Bytes::from_static(body.as_bytes()), version })
}

async fn create(suite: &Suite) -> Checked {
    let key = suite.key("create");
    same("before", &read(suite, &key, None).await?, &Get::Missing)?;
    let version = written(suite, &key, "one", &When::Absent).await?;
    refused(suite, &key, &When::Absent).await?;
    same("after", &read(suite, &key, None).await?, &found("one", version))
}

async fn replace(suite: &Suite) -> Checked {
    let key = suite.key("replace");
    let first = written(suite, &key, "one", &When::Absent).await?;
    let second = written(suite, &key, "two", &When::Unchanged(first.clone())).await?;
    if first == second {
        return Err("two different bodies have the same version".into());
    }
    refused(suite, &key, &When::Unchanged(first)).await?;
    same("after", &read(suite, &key, None).await?, &found("two", second.clone()))?;
    // The version of a read is also valid as a condition.
    let third = written(suite, &key, "three", &When::Unchanged(second)).await?;
    same("at last", &read(suite, &key, None).await?, &found("three", third))
}

async fn gone(suite: &Suite) -> Checked {
    let key = suite.key("gone");
    let version = written(suite, &key, "one", &When::Absent).await?;
    suite.store.delete(&key).await.map_err(|failure| failed(failure.error))?;
    refused(suite, &key, &When::Unchanged(version)).await?;
    same("after", &read(suite, &key, None).await?, &Get::Missing)
}

async fn read_unless(suite: &Suite) -> Checked {
    let key = suite.key("unless");
    let first = written(suite, &key, "one", &When::Absent).await?;
    same("the same version", &read(suite, &key, Some(&first)).await?, &Get::Unchanged)?;
    let second = written(suite, &key, "two", &When::Unchanged(first.clone())).await?;
    same("another version", &read(suite, &key, Some(&first)).await?, &found("two", second.clone()))?;
    suite.store.delete(&key).await.map_err(|failure| failed(failure.error))?;
    same("no object", &read(suite, &key, Some(&second)).await?, &Get::Missing)
}

async fn always(suite: &Suite) -> Checked {
    let key = suite.key("always");
    written(suite, &key, "one", &When::Always).await?;
    let second = written(suite, &key, "two", &When::Always).await?;
    same("after", &read(suite, &key, None).await?, &found("two", second.clone()))?;
    written(suite, &key, "three", &When::Unchanged(second)).await.map(|_| ())
}

async fn remove(suite: &Suite) -> Checked {
    let key = suite.key("remove/deep/below");
    for _ in 0..2 {
        suite.store.delete(&key).await.map_err(|failure| failed(failure.error))?;
    }
    written(suite, &key, "one", &When::Absent).await?;
    suite.store.delete(&key).await.map_err(|failure| failed(failure.error))?;
    same("after", &read(suite, &key, None).await?, &Get::Missing)?;
    written(suite, &key, "again", &When::Absent).await.map(|_| ())
}

async fn bodies(suite: &Suite) -> Checked {
    let large: Bytes = (0u32..300_000).flat_map(u32::to_le_bytes).collect::<Vec<_>>().into();
    for (name, body) in [("empty", Bytes::new()), ("zeros", Bytes::from_static(&[0; 5])), ("large", large)] {
        let key = suite.key(&format!("bodies/{name}"));
        for when in [When::Always, When::Always] {
            let put =
                suite.store.put(&key, body.clone(), &when).await.map_err(|failure| failed(failure.error))?;
            let PutAnswer::Written(version) = put else { return Err(format!("{name} was refused")) };
            let Get::Found(object) = read(suite, &key, None).await? else {
                return Err(format!("{name} cannot be read"));
            };
            if object.body != body || object.version != version {
                return Err(format!("{name} comes back different"));
            }
        }
    }
    Ok(())
}
