//! Log in a bucket: lost answers in every position, slots with other content, costs in requests.

use bytes::Bytes;
use leasehold_core::Kind;
use leasehold_core::journal::{CommitHeader, LogPosition, Seq, commit};
use leasehold_core::keys::journal_commit;
use leasehold_store::ledger::Purpose;
use leasehold_store::store::Answer;
use leasehold_store::testing::FakeHost;
use leasehold_store::testing::log_conformance::{
    ServingLog, commit as commit_records, log_holder, serve, some_fence, texts,
};
use leasehold_store::{
    Cause, Client, CommitOutcome, DelegatingStore, Failure, Followed, Host, Log, MemoryStore, PutAnswer,
    Store, TakeOver, Verb, When,
};
use std::collections::{BTreeSet, VecDeque};
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
    /// A later broker puts its fence just before it.
    Overtaken,
}

const FATES: [Fate; 8] = [
    Fate::Answered,
    Fate::AppliedUnanswered,
    Fate::NeverAppliedUnanswered,
    Fate::Throttled,
    Fate::ThrottledButApplied,
    Fate::Unreached,
    Fate::RefusedThoughItHolds,
    Fate::Overtaken,
];

/// Store that applies a list of fates to successive puts.
#[derive(Debug)]
struct FatedStore {
    inner: MemoryStore,
    fates: Mutex<VecDeque<Fate>>,
}

fn lost() -> Failure {
    Failure::transient(Cause::Unanswered, "the answer was lost")
}

impl FatedStore {
    /// Puts the fence of a later broker into the slot, with the predecessor of `body`.
    async fn overtake(&self, key: &str, body: &Bytes) {
        let ours = commit::decode("ours", body).unwrap().header;
        let holder = log_holder(ours.epoch + 1);
        let header = CommitHeader {
            epoch: holder.epoch,
            instance: holder.instance,
            records: 0,
            fence: Some(some_fence()),
            ..ours
        };
        let fence = commit::encode(&header, &[]).unwrap().body;
        self.inner.put(key, fence, &When::Absent).await.unwrap();
    }
}

impl DelegatingStore for FatedStore {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }

    fn put<'a>(&'a self, key: &'a str, body: Bytes, when: &'a When) -> Answer<'a, PutAnswer> {
        Box::pin(async move {
            let fate = self.fates.lock().unwrap().pop_front().unwrap_or(Fate::Answered);
            match fate {
                Fate::Answered => self.inner.put(key, body, when).await,
                Fate::AppliedUnanswered => {
                    self.inner.put(key, body, when).await?;
                    Err(lost())
                }
                Fate::NeverAppliedUnanswered => Err(lost()),
                Fate::Throttled => Err(Failure::transient(Cause::Throttled, "slow down")),
                Fate::ThrottledButApplied => {
                    self.inner.put(key, body, when).await?;
                    Err(Failure::transient(Cause::Throttled, "slow down"))
                }
                Fate::Unreached => Err(Failure::transient(Cause::Unreached, "no way there")),
                Fate::RefusedThoughItHolds => Ok(PutAnswer::Refused),
                Fate::Overtaken => {
                    self.overtake(key, &body).await;
                    self.inner.put(key, body, when).await
                }
            }
        })
    }
}

fn fated() -> (Arc<FatedStore>, Client) {
    let host: Arc<dyn Host> = Arc::new(FakeHost::new());
    let store = Arc::new(FatedStore { inner: MemoryStore::new(&host), fates: Mutex::default() });
    (store.clone(), Client::new(store, host))
}

async fn serving() -> (Arc<FatedStore>, Client, ServingLog) {
    let (store, client) = fated();
    let serving = serve(&Log::in_bucket(client.clone()), 1, LogPosition::START).await.unwrap();
    (store, client, serving)
}

/// Content of the slot, and its epoch.
async fn slot(store: &FatedStore, seq: u64) -> Option<(Bytes, u64)> {
    let found = store.inner.get(&journal_commit(Seq::new(seq)), None).await.unwrap().found()?;
    let commit = commit::decode("slot", &found.body).unwrap();
    Some((commit.records, commit.header.epoch))
}

#[tokio::test]
async fn every_sequence_of_three_fates_is_reported_correctly() {
    let mut outcomes = [0; 2];
    for first in FATES {
        for second in FATES {
            for third in FATES {
                let (fates, (store, _, mut serving)) = ([first, second, third], serving().await);
                store.fates.lock().unwrap().extend(fates);
                let outcome = serving.writer.commit("{}\n".into(), 1).await.unwrap();
                let found = slot(&store, 2).await;
                match outcome {
                    CommitOutcome::Committed(seq) => {
                        assert_eq!((seq, found), (Seq::new(2), Some(("{}\n".into(), 1))), "{fates:?}");
                        assert!(serving.writer.commit("{}\n".into(), 1).await.is_ok(), "{fates:?}");
                        outcomes[0] += 1;
                    }
                    CommitOutcome::Superseded => {
                        assert_eq!(found, Some((Bytes::new(), 2)), "{fates:?}");
                        let error = serving.writer.commit("{}\n".into(), 1).await.unwrap_err();
                        assert_eq!(error.kind(), Kind::Lost, "{fates:?}");
                        outcomes[1] += 1;
                    }
                    CommitOutcome::Mismatch(error) => panic!("{fates:?}: {error}"),
                }
            }
        }
    }
    assert!(outcomes.iter().all(|count| *count > 50) && outcomes.iter().sum::<u32>() == 512, "{outcomes:?}");
}

#[tokio::test]
async fn a_commit_that_is_never_answered_poisons_the_writer() {
    let (store, _, mut serving) = serving().await;
    store.fates.lock().unwrap().extend([Fate::NeverAppliedUnanswered; 1_000]);
    let error = serving.writer.commit("{}\n".into(), 1).await.unwrap_err();
    assert!(error.outcome_is_unknown() && error.kind() == Kind::Unavailable, "{error}");
    store.fates.lock().unwrap().clear();
    for error in [
        serving.writer.commit("{}\n".into(), 1).await.unwrap_err(),
        serving.writer.is_current().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::Lost);
        assert_eq!(
            error.to_string(),
            "this broker has stopped, because the outcome of a commit is unknown; retry"
        );
    }
    assert_eq!(slot(&store, 2).await, None);
}

#[tokio::test]
async fn a_commit_that_surely_failed_can_be_followed_by_another() {
    let (store, _, mut serving) = serving().await;
    store.fates.lock().unwrap().extend([Fate::Unreached; 1_000]);
    let error = serving.writer.commit("1\n".into(), 1).await.unwrap_err();
    assert!(!error.outcome_is_unknown(), "{error}");
    store.fates.lock().unwrap().clear();
    commit_records(&mut serving.writer, "2\n").await.unwrap();
    assert_eq!(slot(&store, 2).await, Some(("2\n".into(), 1)));
}

#[tokio::test]
async fn a_commit_that_is_dropped_poisons_the_writer() {
    let (store, _, mut serving) = serving().await;
    // A put that is not answered is followed by a pause, during which the caller gives up.
    store.fates.lock().unwrap().extend([Fate::NeverAppliedUnanswered; 1_000]);
    {
        let mut dropped = Box::pin(serving.writer.commit("1\n".into(), 1));
        assert!(futures::poll!(&mut dropped).is_pending());
    }
    store.fates.lock().unwrap().clear();
    assert_eq!(serving.writer.commit("2\n".into(), 1).await.unwrap_err().kind(), Kind::Lost);
}

/// Puts bytes into a slot, as no process of ours does.
async fn spoil(store: &FatedStore, seq: u64, body: impl Into<Bytes>) {
    let key = journal_commit(Seq::new(seq));
    store.inner.put(&key, body.into(), &When::Always).await.unwrap();
}

#[tokio::test]
async fn a_slot_with_other_content_is_a_mismatch() {
    let (store, client, mut serving) = serving().await;
    commit_records(&mut serving.writer, "1\n").await.unwrap();
    let log = Log::in_bucket(client);
    for (body, why) in [
        (
            "garbage\n",
            "`journal/0/log/00000000000000000003` is not a commit: header: expected value at line 1 column 1",
        ),
        ("", "`journal/0/log/00000000000000000003` is not a commit: it has no complete header"),
    ] {
        spoil(&store, 3, body).await;
        let taken = log.take_over(&log_holder(2), LogPosition::START, || Ok(some_fence()), |_| Ok(())).await;
        let Ok(TakeOver::Mismatch(error)) = taken else { panic!("{taken:?}") };
        assert_eq!((error.kind(), error.to_string()), (Kind::Corrupt, why.to_owned()));
        let Ok(Followed::Mismatch(error)) = log.reader(LogPosition::START).read(|_| Ok(())).await else {
            panic!("it is read")
        };
        assert_eq!(error.to_string(), why);
    }
    assert_eq!(serving.writer.is_current().await.unwrap_err().kind(), Kind::Corrupt);
}

#[tokio::test]
async fn a_gap_is_a_mismatch_and_no_fence_is_put_into_it() {
    for missing in 2..=40 {
        let (store, client, mut serving) = serving().await;
        for _ in 0..40 {
            commit_records(&mut serving.writer, "1\n").await.unwrap();
        }
        let log = Log::in_bucket(client);
        store.inner.delete(&journal_commit(Seq::new(missing))).await.unwrap();
        let taken = log.take_over(&log_holder(2), LogPosition::START, || Ok(some_fence()), |_| Ok(())).await;
        let Ok(TakeOver::Mismatch(error)) = taken else { panic!("{taken:?}") };
        let key = journal_commit(Seq::new(missing));
        assert!(error.to_string().starts_with(&format!("`{key}` is missing, although commit ")), "{error}");
        let Ok(Followed::Mismatch(error)) = log.reader(LogPosition::START).read(|_| Ok(())).await else {
            panic!("it is read")
        };
        assert!(error.to_string().contains(&key), "{error}");
        assert_eq!(slot(&store, missing).await, None);
        let mut read = 0;
        let faults = log.check(LogPosition::START, |_| {
            read += 1;
            Ok(())
        });
        let faults = faults.await.unwrap();
        assert_eq!((faults.len(), &faults[0].key, read), (1, &key, missing - 1));
        let dependent = format!("; commits {missing} to 41 cannot be replayed");
        assert!(faults[0].error.to_string().ends_with(&dependent), "{}", faults[0].error);
    }
}

#[tokio::test]
async fn a_commit_that_finds_an_earlier_epoch_in_its_slot_is_a_mismatch() {
    let (store, client) = fated();
    let log = Log::in_bucket(client);
    let mut serving = serve(&log, 5, LogPosition::START).await.unwrap();
    let header = CommitHeader {
        seq: Seq::new(2),
        epoch: 4,
        instance: log_holder(4).instance,
        write_id: log_holder(9).instance,
        previous: serving.writer.position().hash,
        records: 1,
        fence: None,
    };
    spoil(&store, 2, commit::encode(&header, b"{}\n").unwrap().body).await;
    let outcome = serving.writer.commit("{}\n".into(), 1).await.unwrap();
    let CommitOutcome::Mismatch(error) = outcome else { panic!("{outcome:?}") };
    assert_eq!(
        error.to_string(),
        "`journal/0/log/00000000000000000002` does not continue the log: it has epoch 4, but a fence of epoch 5 precedes it"
    );
    // Nor does a replay accept epochs that go back.
    let taken = log.take_over(&log_holder(6), LogPosition::START, || Ok(some_fence()), |_| Ok(())).await;
    let Ok(TakeOver::Mismatch(error)) = taken else { panic!("{taken:?}") };
    assert!(error.to_string().ends_with("its epoch 4 is before epoch 5"), "{error}");
}

#[tokio::test]
async fn fences_stay_when_commits_are_deleted() {
    let (store, client, mut first) = serving().await;
    commit_records(&mut first.writer, "1\n").await.unwrap();
    let log = Log::in_bucket(client);
    let mut second = serve(&log, 2, LogPosition::START).await.unwrap();
    for _ in 0..5 {
        commit_records(&mut second.writer, "2\n").await.unwrap();
    }
    let fences = BTreeSet::from([Seq::new(1), Seq::new(3)]);
    let trimmer = second.writer.trimmer();
    assert_eq!(trimmer.delete_below(Seq::new(8), Seq::NONE, &fences).await.unwrap(), 5);
    let mut there = Vec::new();
    for seq in 1..=8 {
        there.extend(slot(&store, seq).await.map(|_| seq));
    }
    assert_eq!(there, [1, 3, 8]);
    // However late it wakes up, the earlier broker finds its next slot taken.
    assert!(!first.writer.is_current().await.unwrap());
    assert_eq!(trimmer.delete_below(Seq::new(8), Seq::new(7), &fences).await.unwrap(), 0);
}

#[tokio::test]
async fn the_cost_in_requests_is_as_documented() {
    let (_, client) = fated();
    let log = Log::in_bucket(client.clone());
    let counted = |verb: Verb| {
        let ledger = client.ledger().snapshot();
        ledger.count(|line| line.verb == verb && line.purpose == Purpose::Journal)
    };
    let mut first = serve(&log, 1, LogPosition::START).await.unwrap();
    assert_eq!((counted(Verb::Put), counted(Verb::Get)), (1, 1), "an empty log");
    for _ in 0..100 {
        commit_records(&mut first.writer, "{}\n").await.unwrap();
    }
    assert_eq!((counted(Verb::Put), counted(Verb::Get)), (101, 1), "one put for each commit");
    assert!(first.writer.is_current().await.unwrap());
    assert_eq!(counted(Verb::Get), 2);
    assert_eq!(counted(Verb::List), 1, "one for each takeover");
    let second = serve(&log, 2, LogPosition::START).await.unwrap();
    assert_eq!((texts(&second.replayed).len(), counted(Verb::List)), (100, 2));
    let gets = counted(Verb::Get) - 2;
    assert!((102..=117).contains(&gets), "one get for each commit, and at most 16 beyond the end: {gets}");
    let all = client.ledger().snapshot();
    assert_eq!(all.count(|line| line.purpose != Purpose::Journal), 0);
}
