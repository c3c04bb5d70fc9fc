//! Lists: order, pages, start-after, prefixes, folding.

use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use std::collections::BTreeSet;

use super::{Check, Checked, Suite, failed, same};
use crate::ledger::Purpose::Admin;
use crate::store::{List, Page};

pub(super) const CHECKS: &[Check] = &[
    ("a page shows what was just written and removed", |suite| fresh(suite).boxed()),
    ("many keys in byte order across pages", |suite| many(suite).boxed()),
    ("byte order of whole keys", |suite| whole_keys(suite).boxed()),
    ("prefixes and folding", |suite| folding(suite).boxed()),
    ("nothing there", |suite| nothing(suite).boxed()),
];

async fn write_all(suite: &Suite, keys: &BTreeSet<String>) -> Checked {
    // Owned keys: a borrowed one in a buffered stream confuses the compiler about lifetimes.
    let puts = stream::iter(keys.clone()).map(|key| {
        let client = suite.client.clone();
        async move { client.put_always(Admin, &key, Bytes::new()).await }
    });
    puts.buffer_unordered(32).try_for_each(|_| async { Ok(()) }).await.map_err(failed)
}

async fn page(suite: &Suite, list: &List) -> Result<Page, String> {
    let page = suite.client.list(Admin, list).await.map_err(failed)?;
    if page.entries.len() + page.prefixes.len() > list.limit {
        return Err(format!("a page of {} holds more", list.limit));
    }
    Ok(page)
}

/// Lists all pages, as keys and folded prefixes, in order.
async fn pages(suite: &Suite, list: List) -> Result<(Vec<String>, Vec<String>), String> {
    let (mut keys, mut prefixes, mut list) = (Vec::new(), Vec::new(), list);
    loop {
        let page = page(suite, &list).await?;
        keys.extend(page.entries.into_iter().map(|entry| entry.key));
        prefixes.extend(page.prefixes);
        match page.next {
            Some(cursor) => list = list.at(cursor),
            None => return Ok((keys, prefixes)),
        }
    }
}

async fn fresh(suite: &Suite) -> Checked {
    let root = suite.key("fresh/");
    for round in 0..20 {
        let key = format!("{root}{round:02}");
        suite.client.put_always(Admin, &key, Bytes::from_static(b"12345")).await.map_err(failed)?;
        let listed = page(suite, &List::all(&root)).await?;
        let last = listed.entries.last().map(|entry| (entry.key.clone(), entry.size));
        same("the last entry", &last, &Some((key, 5)))?;
    }
    suite.client.delete(Admin, &format!("{root}07")).await.map_err(failed)?;
    same("the count after a removal", &page(suite, &List::all(&root)).await?.entries.len(), &19)
}

async fn many(suite: &Suite) -> Checked {
    let root = suite.key("many/");
    // Three levels, so that pages end in the middle of branches.
    let keys: BTreeSet<_> =
        (0..suite.options.listed).map(|n| format!("{root}{:02}/{:02}/{n:05}", n % 7, n % 11)).collect();
    write_all(suite, &keys).await?;
    let expected: Vec<_> = keys.iter().cloned().collect();
    same("all of it", &pages(suite, List::all(&root)).await?.0, &expected)?;
    let after = &expected[expected.len() / 3];
    let (rest, _) = pages(suite, List::all(&root).after(after).limit(333)).await?;
    same("what comes after a key", &rest, &expected[expected.len() / 3 + 1..].to_vec())?;
    let between = format!("{root}03/");
    let (rest, _) = pages(suite, List::all(&root).after(&between)).await?;
    let expected: Vec<_> = keys.range(between..).cloned().collect();
    same("what comes after a place between keys", &rest, &expected)?;
    if suite.options.whole_key_order {
        let (rest, _) = pages(suite, List::all(&root).after(format!("{root}03"))).await?;
        same("what comes after the name of a branch", &rest, &expected)?;
    }
    Ok(())
}

async fn whole_keys(suite: &Suite) -> Checked {
    let root = suite.key("whole/");
    // `-` and `.` are less than `/`, digits and letters are greater.
    let odd = ["a-b", "a.b", "a-b-c/d", "a.json/x"];
    let plain = ["a/x", "a/y/z", "a0", "ab", "b", "B", "_"];
    let names = plain.iter().chain(odd.iter().filter(|_| suite.options.whole_key_order));
    let keys: BTreeSet<_> = names.map(|name| format!("{root}{name}")).collect();
    write_all(suite, &keys).await?;
    let expected: Vec<_> = keys.into_iter().collect();
    for limit in [1_000, 3, 1] {
        same("all of it", &pages(suite, List::all(&root).limit(limit)).await?.0, &expected)?;
    }
    for (number, key) in expected.iter().enumerate() {
        let (rest, _) = pages(suite, List::all(&root).after(key)).await?;
        same(&format!("what comes after {key}"), &rest, &expected[number + 1..].to_vec())?;
    }
    Ok(())
}

async fn folding(suite: &Suite) -> Checked {
    let root = suite.key("fold/");
    let names = ["0/20260101-0000/x", "0/20260101-0001/y", "1/20260101-0000/z", "1f/a", "2", "20/a/b", "3/c"];
    let keys: BTreeSet<_> = names.iter().map(|name| format!("{root}{name}")).collect();
    write_all(suite, &keys).await?;
    let full = |names: &[&str]| names.iter().map(|name| format!("{root}{name}")).collect::<Vec<_>>();
    for limit in [1_000, 2, 1] {
        let (keys, prefixes) = pages(suite, List::all(&root).delimited().limit(limit)).await?;
        same("unfolded keys", &keys, &full(&["2"]))?;
        same("folded prefixes", &prefixes, &full(&["0/", "1/", "1f/", "20/", "3/"]))?;
    }
    let (keys, prefixes) = pages(suite, List::all(format!("{root}1")).delimited()).await?;
    same("prefixes that begin with half a name", &prefixes, &full(&["1/", "1f/"]))?;
    same("keys that begin with half a name", &keys, &Vec::new())?;
    let (keys, _) = pages(suite, List::all(format!("{root}0/20260101-000"))).await?;
    same("keys below half a name", &keys, &full(&names[..2]))
}

async fn nothing(suite: &Suite) -> Checked {
    let empty = (Vec::new(), Vec::new());
    same("an empty prefix", &pages(suite, List::all(suite.key("nothing/"))).await?, &empty)?;
    same("a folded empty prefix", &pages(suite, List::all(suite.key("nothing/")).delimited()).await?, &empty)
}
