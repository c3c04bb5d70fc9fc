//! Lost answers, exhaustively and without a network: every way in which a put can go wrong, in every position.

use bytes::Bytes;
use leasehold_store::store::Answer;
use leasehold_store::testing::FakeHost;
use leasehold_store::update::{Decision, update};
use leasehold_store::{
    Cause, Client, DelegatingStore, Failure, MemoryStore, Object, Purpose, PutAnswer, PutOutcome, Store, When,
};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// Fate of one put.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Answered,
    AppliedUnanswered,
    NeverAppliedUnanswered,
    Throttled,
    ThrottledButApplied,
    Unreached,
    RefusedThoughItHolds,
    /// Another writer writes just before it.
    Overtaken,
    /// Applied, answer lost, and another writer changes the object.
    AppliedThenOvertaken,
}

const FATES: [Fate; 9] = [
    Fate::Answered,
    Fate::AppliedUnanswered,
    Fate::NeverAppliedUnanswered,
    Fate::Throttled,
    Fate::ThrottledButApplied,
    Fate::Unreached,
    Fate::RefusedThoughItHolds,
    Fate::Overtaken,
    Fate::AppliedThenOvertaken,
];

/// Store that applies a list of fates to successive puts.
#[derive(Debug)]
struct ScriptedStore {
    inner: MemoryStore,
    fates: Mutex<VecDeque<Fate>>,
    writes: Mutex<Vec<Bytes>>,
}

impl ScriptedStore {
    async fn apply(&self, key: &str, body: &Bytes, when: &When) -> PutAnswer {
        let answer = self.inner.put(key, body.clone(), when).await.unwrap();
        if matches!(answer, PutAnswer::Written(_)) {
            self.writes.lock().unwrap().push(body.clone());
        }
        answer
    }

    async fn intrude(&self, key: &str) {
        let found = self.inner.get(key, None).await.unwrap().found();
        let below = found.map(|object| object.body).unwrap_or_default();
        let body = [b"intruder on ".as_slice(), &below].concat();
        self.inner.put(key, body.into(), &When::Always).await.unwrap();
    }
}

fn lost() -> Failure {
    Failure::transient(Cause::Unanswered, "the answer was lost")
}

impl DelegatingStore for ScriptedStore {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }

    fn put<'a>(&'a self, key: &'a str, body: Bytes, when: &'a When) -> Answer<'a, PutAnswer> {
        Box::pin(async move {
            let fate = self.fates.lock().unwrap().pop_front().unwrap_or(Fate::Answered);
            match fate {
                Fate::Answered => Ok(self.apply(key, &body, when).await),
                Fate::AppliedUnanswered => {
                    self.apply(key, &body, when).await;
                    Err(lost())
                }
                Fate::NeverAppliedUnanswered => Err(lost()),
                Fate::Throttled => Err(Failure::transient(Cause::Throttled, "slow down")),
                Fate::ThrottledButApplied => {
                    self.apply(key, &body, when).await;
                    Err(Failure::transient(Cause::Throttled, "slow down"))
                }
                Fate::Unreached => Err(Failure::transient(Cause::Unreached, "no way there")),
                Fate::RefusedThoughItHolds => Ok(PutAnswer::Refused),
                Fate::Overtaken => {
                    self.intrude(key).await;
                    Ok(self.apply(key, &body, when).await)
                }
                Fate::AppliedThenOvertaken => {
                    if let PutAnswer::Written(_) = self.apply(key, &body, when).await {
                        self.intrude(key).await;
                    }
                    Err(lost())
                }
            }
        })
    }

    fn describe(&self) -> String {
        "a scripted store".into()
    }
}

fn scripted(fates: &[Fate]) -> (Arc<ScriptedStore>, Client) {
    let host: Arc<FakeHost> = Arc::new(FakeHost::new());
    let as_host: Arc<dyn leasehold_store::Host> = host.clone();
    let store = Arc::new(ScriptedStore {
        inner: MemoryStore::new(&as_host),
        fates: Mutex::new(fates.iter().copied().collect()),
        writes: Mutex::default(),
    });
    (store.clone(), Client::new(store, host))
}

async fn put_under(
    fates: &[Fate],
    replace: bool,
) -> (leasehold_core::Result<PutOutcome>, usize, Option<Object>) {
    let (store, client) = scripted(fates);
    let mut when = When::Absent;
    if replace {
        let PutAnswer::Written(version) = store.inner.put("k", "before".into(), &When::Absent).await.unwrap()
        else {
            unreachable!("the store is empty")
        };
        when = When::Unchanged(version);
    }
    let body = Bytes::from(client.write_id().to_string());
    let id = body.clone();
    // Like a record with a history: the write is still recognised in later states.
    let ours = move |found: &[u8]| found.ends_with(&id);
    let put = client.put_if(Purpose::Claim, "k", body, &when, &ours).await;
    let applied = store.writes.lock().unwrap().len();
    let standing = store.inner.get("k", None).await.unwrap().found();
    (put, applied, standing)
}

#[tokio::test]
async fn every_sequence_of_three_fates_is_reported_correctly() {
    let mut sequences = 0;
    for first in FATES {
        for second in FATES {
            for third in FATES {
                for replace in [false, true] {
                    let fates = [first, second, third];
                    let (put, applied, standing) = put_under(&fates, replace).await;
                    let standing = standing.unwrap();
                    assert!(applied <= 1, "{fates:?} wrote {applied} times");
                    match put.unwrap() {
                        PutOutcome::Written(version) => {
                            assert_eq!(applied, 1, "{fates:?} is reported as written");
                            // With a version of another writer we could overwrite its change.
                            assert_eq!(
                                standing.version, version,
                                "{fates:?} returns a version of another writer"
                            );
                            assert!(
                                !standing.body.starts_with(b"intruder"),
                                "{fates:?} returns a version of another writer"
                            );
                        }
                        PutOutcome::Superseded(object) => {
                            assert_eq!(applied, 1, "{fates:?} is reported as superseded");
                            assert_eq!(object, standing);
                            assert!(standing.body.starts_with(b"intruder"), "{fates:?}");
                        }
                        PutOutcome::Lost(_) => assert_eq!(applied, 0, "{fates:?} is reported as lost"),
                    }
                    sequences += 1;
                }
            }
        }
    }
    assert_eq!(sequences, 2 * 9 * 9 * 9);
}

#[tokio::test]
async fn a_put_that_is_never_answered_ends_as_unknown_and_in_time() {
    let (put, _, _) = put_under(&[Fate::NeverAppliedUnanswered; 1_000], true).await;
    let error = put.unwrap_err();
    assert_eq!(error.kind(), leasehold_core::Kind::Unavailable);
    assert!(error.outcome_is_unknown());
}

#[tokio::test]
async fn a_put_that_was_never_sent_has_a_known_outcome() {
    let (put, applied, _) = put_under(&[Fate::Unreached; 1_000], false).await;
    assert!(!put.unwrap_err().outcome_is_unknown());
    assert_eq!(applied, 0);
}

#[tokio::test]
async fn an_earlier_attempt_of_a_put_without_condition_leaves_its_outcome_unknown() {
    let mut fates = [Fate::Unreached; 1_000];
    fates[0] = Fate::AppliedUnanswered;
    let (store, client) = scripted(&fates);
    let error = client.put_always(Purpose::Submit, "k", "body".into()).await.unwrap_err();
    assert!(error.outcome_is_unknown() && store.writes.lock().unwrap().len() == 1);
    let (_, client) = scripted(&[Fate::Unreached; 1_000]);
    let error = client.put_always(Purpose::Submit, "k", "body".into()).await.unwrap_err();
    assert!(!error.outcome_is_unknown());
}

#[tokio::test]
async fn a_writer_succeeds_beside_one_that_never_stops() {
    let (store, client) = scripted(&[Fate::Overtaken; 3]);
    let busy = async {
        loop {
            store.intrude("k").await;
            tokio::task::yield_now().await;
        }
    };
    let updated = update(&client, Purpose::Admin, "k", |_| Ok(Decision::write("mine", ())));
    // Whenever the loser pauses, the other writer writes.
    tokio::select! {
        biased;
        updated = updated => assert!(matches!(updated.unwrap().put, Some(PutOutcome::Written(_)))),
        () = busy => unreachable!("it never stops"),
    }
}

#[tokio::test]
async fn an_outage_lasts_until_a_request_of_its_class_is_answered() {
    let (store, client) = scripted(&[Fate::Unreached; 40]);
    let id = |client: &Client| Bytes::from(client.write_id().to_string());
    client.put(Purpose::Claim, "k", id(&client), &When::Absent).await.unwrap_err();
    let outage = client.health().outage().expect("all have failed");
    assert!(outage.failures >= 3 && outage.reason.contains("no way there"), "{outage:?}");
    let now = client.host().instant();
    assert!((1..=30).contains(&outage.pause(now).as_secs()), "{outage:?}");
    // Clones share the state, and reads are another class.
    client.get(Purpose::Claim, "k").await.unwrap();
    assert!(client.clone().health().outage().is_some());
    store.fates.lock().unwrap().clear();
    client.put(Purpose::Claim, "k", id(&client), &When::Absent).await.unwrap();
    assert!(client.health().outage().is_none());
}

#[tokio::test]
async fn writes_that_got_no_answer_long_ago_are_no_outage_while_reads_are_answered() {
    let (_, client) = scripted(&[Fate::Unreached]);
    client.put_hint(Purpose::Claim, "k", "x".into()).await.unwrap_err();
    client.host().sleep(std::time::Duration::from_mins(1)).await;
    client.get(Purpose::Claim, "k").await.unwrap();
    assert!(client.health().outage().is_some());
    client.host().sleep(std::time::Duration::from_mins(1)).await;
    client.get(Purpose::Claim, "k").await.unwrap();
    assert!(client.health().outage().is_none());
}
