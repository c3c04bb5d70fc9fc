//! A store whose requests are lost, refused, late, or the last ones of a process.

use bytes::Bytes;
use futures::future::BoxFuture;
use leasehold_core::Kind;
use leasehold_store::store::Answer;
use leasehold_store::{
    Cause, DelegatingStore, Failure, Get, List, MemoryStore, Page, PutAnswer, Store, Verb, Version, When,
};
use std::fmt;
use std::sync::{Arc, Mutex};

/// Fault of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// None.
    Pass,
    /// Applied, but its answer is lost.
    LoseAnswer,
    /// Lost in flight, which looks like a lost answer.
    LoseRequest,
    /// Refused permanently.
    Refuse,
    /// Never sent.
    Unreached,
    /// Without an answer; applied when the test says so.
    Hold,
    /// The process crashes before it.
    Die,
    /// The process crashes right after it was applied.
    PassThenDie,
    /// The process crashes after sending it; applied when the test says so.
    HoldThenDie,
}

/// One request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Request {
    pub(crate) verb: Verb,
    pub(crate) key: String,
    body: Bytes,
    pub(crate) when: Option<When>,
}

impl Request {
    /// True if its body contains this text.
    pub(crate) fn body_has(&self, text: &str) -> bool {
        String::from_utf8_lossy(&self.body).contains(text)
    }
}

type Script = Box<dyn Fn(usize, &Request) -> Fate + Send + Sync>;
type Fits = Box<dyn Fn(usize, &Request) -> bool + Send + Sync>;

/// A store with a script of faults. Requests are numbered from 0, again with every script.
pub(crate) struct Stage {
    inner: Arc<MemoryStore>,
    state: Mutex<State>,
}

struct State {
    script: Script,
    interruption: Option<(Fits, BoxFuture<'static, ()>)>,
    asked: Vec<Request>,
    held: Vec<Request>,
    is_dead: bool,
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stage")
    }
}

impl Stage {
    pub(crate) fn new(inner: Arc<MemoryStore>) -> Self {
        let state = State {
            script: Box::new(|_, _| Fate::Pass),
            interruption: None,
            asked: Vec::new(),
            held: Vec::new(),
            is_dead: false,
        };
        Self { inner, state: Mutex::new(state) }
    }

    /// Sets the script for the following requests.
    pub(crate) fn play(&self, script: impl Fn(usize, &Request) -> Fate + Send + Sync + 'static) {
        let mut state = self.state.lock().unwrap();
        state.script = Box::new(script);
        state.asked.clear();
    }

    /// Sets the fault of the request with this number only.
    pub(crate) fn play_at(&self, number: usize, fate: Fate) {
        self.play(move |n, _| if n == number { fate } else { Fate::Pass });
    }

    /// Runs something else before the first matching request.
    pub(crate) fn interrupt(
        &self,
        fits: impl Fn(usize, &Request) -> bool + Send + Sync + 'static,
        happens: impl Future<Output = ()> + Send + 'static,
    ) {
        let mut state = self.state.lock().unwrap();
        state.interruption = Some((Box::new(fits), Box::pin(happens)));
        state.asked.clear();
    }

    /// The requests of this script.
    pub(crate) fn asked(&self) -> Vec<Request> {
        self.state.lock().unwrap().asked.clone()
    }

    /// Applies the late requests, each on its own condition.
    pub(crate) async fn apply_late(&self) {
        let held = std::mem::take(&mut self.state.lock().unwrap().held);
        for asked in held {
            match (asked.verb, &asked.when) {
                (Verb::Put, Some(when)) => {
                    self.inner.put(&asked.key, asked.body.clone(), when).await.unwrap();
                }
                (Verb::Delete, _) => self.inner.delete(&asked.key).await.unwrap(),
                _ => {}
            }
        }
    }

    async fn perform<T>(&self, asked: Request, carried_out: Answer<'_, T>) -> Result<T, Failure> {
        let (fate, interruption) = self.note(&asked);
        if let Some(interruption) = interruption {
            interruption.await;
        }
        let lost = || Failure::transient(Cause::Unanswered, "the answer was lost");
        match fate {
            Fate::Pass | Fate::PassThenDie => carried_out.await,
            Fate::LoseAnswer => {
                carried_out.await?;
                Err(lost())
            }
            Fate::LoseRequest => Err(lost()),
            Fate::Refuse => Err(Failure::permanent(Kind::Denied, "turned away")),
            Fate::Unreached => Err(Failure::transient(Cause::Unreached, "no way there")),
            Fate::Hold => {
                self.state.lock().unwrap().held.push(asked);
                Err(lost())
            }
            Fate::HoldThenDie => {
                self.state.lock().unwrap().held.push(asked);
                Err(Failure::permanent(Kind::Internal, "dead"))
            }
            Fate::Die => Err(Failure::permanent(Kind::Internal, "dead")),
        }
    }

    fn note(&self, asked: &Request) -> (Fate, Option<BoxFuture<'static, ()>>) {
        let mut state = self.state.lock().unwrap();
        if state.is_dead {
            return (Fate::Die, None);
        }
        let number = state.asked.len();
        state.asked.push(asked.clone());
        let fate = (state.script)(number, asked);
        state.is_dead = matches!(fate, Fate::Die | Fate::PassThenDie | Fate::HoldThenDie);
        let fits = state.interruption.as_ref().is_some_and(|(fits, _)| fits(number, asked));
        let interruption = if fits { state.interruption.take().map(|(_, happens)| happens) } else { None };
        (fate, interruption)
    }
}

fn asked(verb: Verb, key: &str, body: Bytes, when: Option<&When>) -> Request {
    Request { verb, key: key.to_owned(), body, when: when.cloned() }
}

impl DelegatingStore for Stage {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn get<'a>(&'a self, key: &'a str, unless: Option<&'a Version>) -> Answer<'a, Get> {
        let asked = asked(Verb::Get, key, Bytes::new(), None);
        Box::pin(self.perform(asked, self.inner.get(key, unless)))
    }

    fn put<'a>(&'a self, key: &'a str, body: Bytes, when: &'a When) -> Answer<'a, PutAnswer> {
        let asked = asked(Verb::Put, key, body.clone(), Some(when));
        Box::pin(self.perform(asked, self.inner.put(key, body, when)))
    }

    fn delete<'a>(&'a self, key: &'a str) -> Answer<'a, ()> {
        let asked = asked(Verb::Delete, key, Bytes::new(), None);
        Box::pin(self.perform(asked, self.inner.delete(key)))
    }

    fn list<'a>(&'a self, list: &'a List) -> Answer<'a, Page> {
        let asked = asked(Verb::List, &list.prefix, Bytes::new(), None);
        Box::pin(self.perform(asked, self.inner.list(list)))
    }

    fn describe(&self) -> String {
        "a stage".into()
    }
}
