//! The scripts that run in Redis, and what they return.
//!
//! The state key is a hash:
//!
//! | field | content |
//! |---|---|
//! | `owner` | whose stream it is: installation, server, database, slot |
//! | `claim` | of the walpost that holds the slot; written when it opens the key |
//! | `writer` | of the connection that may add entries; written when it synchronises |
//! | `generation` | the generation of the ids |
//! | `last` | the id of the last event that was handled: in the stream, or among the dead letters |
//! | `top` | the last id of the stream itself |
//! | `state` | walpost's position, in JSON |
//! | `serial` | how many times it was written under this claim |
//!
//! Every script compares the stream's own last id with `top`: `XINFO` has it also after trimming, and a
//! stream that was deleted and made again has another one.
//!
//! A script is atomic: nothing of it is replicated, or written to the log, without the rest
//! (<https://redis.io/docs/latest/develop/programmability/eval-intro/>).

use std::sync::LazyLock;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Script, Value};

use super::config::{RedisConfig, owner_key};
use super::entry_id::EntryId;
use crate::destination::parts::Failure;
use crate::destination::parts::claims::is_own;

/// Does nothing. A server that refuses writes refuses it too, since its shebang has no flag
/// `no-writes` (<https://redis.io/docs/latest/develop/programmability/lua-api/#script_flags>).
const WRITES: &str = "#!lua
return 1";

/// The last id of a stream; the empty text if it does not exist.
const TOP: &str = "
local function top(key)
  local info = redis.pcall('XINFO', 'STREAM', key)
  if info.err then
    if string.find(info.err, 'no such key', 1, true) then return '' end
    return info
  end
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then return info[i + 1] end
  end
end
";

/// The id behind another one: it may be that of an event that is still to come.
const BEHIND: &str = "
local function behind(id)
  local high, low = string.match(id, '^(%d+)-(%d+)$')
  return high .. '-' .. string.format('%.0f', tonumber(low) + 1)
end
";

/// Whether the first of two ids is lower. As text, since Lua's numbers have 53 bits.
const LESS: &str = "
local function less(a, b)
  local function pad(id)
    local high, low = string.match(id, '^(%d+)-(%d+)$')
    return string.rep('0', 20 - #high) .. high .. string.rep('0', 20 - #low) .. low
  end
  return pad(a) < pad(b)
end
";

/// KEYS: stream, state key. ARGV: owner, claim. With an empty claim it only reads.
const OPEN: &str = "
local owner = redis.call('HGET', KEYS[2], 'owner')
local found = top(KEYS[1])
if type(found) == 'table' then return found end
if not owner then return {'none', found, '', '', '', ''} end
if owner ~= ARGV[1] then return {owner, found, '', '', '', ''} end
if ARGV[2] ~= '' then
  redis.call('HSET', KEYS[2], 'claim', ARGV[2])
  redis.call('HDEL', KEYS[2], 'writer', 'serial')
end
local h = redis.call('HMGET', KEYS[2], 'generation', 'last', 'top', 'state')
return {'ok', found, h[1] or '', h[2] or '', h[3] or '', h[4] or ''}
";

/// KEYS: stream, state key. ARGV: owner, claim, the last id as it was seen, generation, state.
/// Creates a stream that does not exist.
const ADOPT: &str = "
local owner = redis.call('HGET', KEYS[2], 'owner')
if owner and owner ~= ARGV[1] then return 'changed' end
local found = top(KEYS[1])
if type(found) == 'table' then return found end
if found ~= ARGV[3] then return 'changed' end
if found == '' then
  redis.call('XGROUP', 'CREATE', KEYS[1], 'walpost.adopt', '$', 'MKSTREAM')
  redis.call('XGROUP', 'DESTROY', KEYS[1], 'walpost.adopt')
  found = '0-0'
end
redis.call('HDEL', KEYS[2], 'writer', 'serial')
redis.call('HSET', KEYS[2], 'owner', ARGV[1], 'claim', ARGV[2], 'generation', ARGV[4],
  'last', found, 'top', found, 'state', ARGV[5])
return 'ok'
";

/// KEYS: stream, state key. ARGV: claim, serial, state, the last id that Redis has acknowledged. A
/// position is not written past an entry that Redis has lost.
const WRITE: &str = "
local h = redis.call('HMGET', KEYS[2], 'claim', 'last', 'top', 'serial')
if h[1] ~= ARGV[1] then return {'fenced', h[1] or ''} end
if tonumber(h[4] or '0') >= tonumber(ARGV[2]) then return {'late', ''} end
local found = top(KEYS[1])
if type(found) == 'table' then return found end
if found ~= h[3] then return {'top', found, h[3]} end
if less(h[2], ARGV[4]) then return {'lost', h[2]} end
redis.call('HSET', KEYS[2], 'state', ARGV[3], 'serial', ARGV[2])
return {'ok'}
";

/// KEYS: stream, state key. ARGV: claim, writer.
const SYNC: &str = "
local h = redis.call('HMGET', KEYS[2], 'claim', 'generation', 'last', 'top')
if h[1] ~= ARGV[1] then return {'fenced', h[1] or '', '', '', ''} end
local found = top(KEYS[1])
if type(found) == 'table' then return found end
redis.call('HSET', KEYS[2], 'writer', ARGV[2])
return {'ok', found, h[2], h[3], h[4]}
";

/// KEYS: stream, state key, stream of dead letters. ARGV: writer, the id of the event before the
/// first entry, `MAXLEN` or the empty text, then for each entry: its id, 1 for a dead letter, the
/// number of names and values, and these. Returns how many were added, and why not all. The id of an
/// entry is another one if a replayed dead letter has it: `last` has that of the event all the same.
const ADD: &str = "
local pcall, unpack, type, tonumber = redis.pcall, unpack, type, tonumber
local ARGV, stream, maxlen = ARGV, KEYS[1], ARGV[3]
local h = redis.call('HMGET', KEYS[2], 'writer', 'last', 'top', 'claim')
if h[1] ~= ARGV[1] then return {0, 'fenced', h[4] or ''} end
if h[2] ~= ARGV[2] then return {0, 'gap'} end
local found = top(stream)
if type(found) == 'table' then return found end
if found ~= h[3] then return {0, 'top', found, h[3]} end
local last, top, n, i, err = h[2], h[3], 0, 4, ''
local function add(id, from, to)
  if maxlen == '' then return pcall('XADD', stream, 'NOMKSTREAM', id, unpack(ARGV, from, to)) end
  return pcall('XADD', stream, 'NOMKSTREAM', 'MAXLEN', '~', maxlen, id, unpack(ARGV, from, to))
end
while ARGV[i] do
  local id, dead, count, r = ARGV[i], ARGV[i + 1] == '1', tonumber(ARGV[i + 2]), nil
  local at = id
  i = i + 3
  if dead then
    r = pcall('XADD', KEYS[3], '*', unpack(ARGV, i, i + count - 1))
  else
    r = add(at, i, i + count - 1)
    if type(r) == 'table' and string.find(r.err, 'equal or smaller', 1, true) then
      at = behind(top)
      r = add(at, i, i + count - 1)
    end
  end
  if type(r) == 'table' then err = r.err break end
  if not r then err = 'gone' break end
  if not dead then top = at end
  last, n, i = id, n + 1, i + count
end
if n > 0 then redis.call('HSET', KEYS[2], 'last', last, 'top', top) end
return {n, err}
";

/// KEYS: stream, state key, stream of dead letters. ARGV: the id of a dead letter, `MAXLEN` or the empty
/// text, names and values of its event's entry. Moves it to the stream, unless it is gone.
const MOVE: &str = "
local h = redis.call('HGET', KEYS[2], 'top')
if not h then return {'none'} end
local found = top(KEYS[1])
if type(found) == 'table' then return found end
if found ~= h then return {'top', found, h} end
if #redis.call('XRANGE', KEYS[3], ARGV[1], ARGV[1]) == 0 then return {'taken'} end
-- A right that is missing is noticed before anything is changed.
redis.call('HSET', KEYS[2], 'top', h)
redis.call('XDEL', KEYS[3], '0-1')
local id, r = behind(h), nil
if ARGV[2] == '' then
  r = redis.pcall('XADD', KEYS[1], 'NOMKSTREAM', id, unpack(ARGV, 3))
else
  r = redis.pcall('XADD', KEYS[1], 'NOMKSTREAM', 'MAXLEN', '~', ARGV[2], id, unpack(ARGV, 3))
end
if type(r) == 'table' then return {'refused', r.err} end
if not r then return {'gone'} end
redis.call('HSET', KEYS[2], 'top', id)
redis.call('XDEL', KEYS[3], ARGV[1])
return {'ok'}
";

/// How many names and values an entry may have: Lua puts them on its stack, which has 8000 places.
pub(super) const FIELDS_MAX: usize = 7000;

static SCRIPTS: LazyLock<[Script; 5]> = LazyLock::new(|| {
    let with_top = |code: &str| Script::new(&format!("{TOP}{code}"));
    let write = format!("{LESS}{WRITE}");
    let add = format!("{BEHIND}{ADD}");
    [with_top(OPEN), with_top(ADOPT), with_top(&write), with_top(SYNC), with_top(&add)]
});

/// The script that adds entries, by its hash.
pub(super) fn add_hash() -> &'static str {
    SCRIPTS[4].get_hash()
}

/// Has Redis keep the script that adds entries.
pub(super) async fn load(client: &mut MultiplexedConnection) -> Result<(), Failure> {
    SCRIPTS[4].prepare_invoke().load_async(client).await?;
    Ok(())
}

/// The state key, opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Opened {
    /// No state key. The stream's last id, if that exists.
    None(Option<EntryId>),
    /// Nobody else can add or write any more.
    Ours(Contents),
    /// A state key of this other owner.
    Others(String),
}

/// What the state key has, and the stream's last id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) generation: u8,
    pub(crate) last: EntryId,
    pub(crate) top: EntryId,
    /// `None`: the stream does not exist.
    pub(crate) found: Option<EntryId>,
    pub(crate) state: String,
}

impl Contents {
    /// Whether nobody but walpost has written to the stream.
    pub(crate) fn check(&self, stream: &str) -> Result<(), Failure> {
        check_top(stream, self.top, self.found)
    }
}

fn check_top(stream: &str, top: EntryId, found: Option<EntryId>) -> Result<(), Failure> {
    match found {
        Some(found) if found == top => Ok(()),
        Some(found) if found > top => Err(Failure::Stream(format!(
            "stream {stream} has entries of another writer (its last id is {found}, and walpost's is \
             {top}): let nobody else write to it, or give walpost a stream of its own by \
             redis.stream. `walpost adopt --apply` continues behind them"
        ))),
        Some(found) => Err(Failure::Stream(format!(
            "stream {stream} ends at {found}, and walpost's last entry was {top}: the stream was \
             deleted and made again, or restored. `walpost adopt --apply` continues behind what it \
             has now; what it lacks is not published again by that"
        ))),
        None => Err(gone(stream)),
    }
}

/// The stream was deleted.
fn gone(stream: &str) -> Failure {
    Failure::Stream(format!(
        "stream {stream} does not exist any more: it was deleted, evicted, or lost with Redis' data. \
         `walpost adopt --apply` creates it again and continues from the slot's position; what was \
         in it is not published again by that"
    ))
}

/// Whether the server accepts writes: not if its memory is full, if it is a replica or has too few,
/// or if it cannot write to its disk.
pub(super) async fn accepts_writes(client: &mut MultiplexedConnection) -> Result<(), Failure> {
    let answer = redis::cmd("EVAL").arg(WRITES).arg(0).query_async::<Value>(client).await;
    Ok(answer.map(drop)?)
}

/// Opens the state key with this claim; `None`: reads it.
pub(crate) async fn open(
    client: &mut MultiplexedConnection,
    config: &RedisConfig,
    owner: &str,
    claim: Option<&str>,
) -> Result<Opened, Failure> {
    let [kind, found, generation, last, top, state]: [String; 6] = SCRIPTS[0]
        .key(&config.stream)
        .key(owner_key(&config.stream))
        .arg(owner)
        .arg(claim.unwrap_or_default())
        .invoke_async::<Vec<String>>(client)
        .await?
        .try_into()
        .map_err(|_| unexpected())?;
    let found = EntryId::from_text(&found);
    match kind.as_str() {
        "none" => Ok(Opened::None(found)),
        "ok" => {
            let (generation, last, top) = parsed(&generation, &last, &top)?;
            Ok(Opened::Ours(Contents { generation, last, top, found, state }))
        }
        _ => Ok(Opened::Others(kind)),
    }
}

/// Makes the stream this owner's, behind `found`, which is the last id that was seen.
pub(crate) async fn adopt(
    client: &mut MultiplexedConnection,
    config: &RedisConfig,
    (owner, claim): (&str, &str),
    (found, generation): (Option<EntryId>, u8),
    state: &str,
) -> Result<(), Failure> {
    let result: String = SCRIPTS[1]
        .key(&config.stream)
        .key(owner_key(&config.stream))
        .arg(owner)
        .arg(claim)
        .arg(found.map_or_else(String::new, |found| found.to_string()))
        .arg(generation)
        .arg(state)
        .invoke_async(client)
        .await?;
    if result == "ok" {
        return Ok(());
    }
    let why = format!("stream {} changed meanwhile: run the command again", config.stream);
    Err(Failure::Stream(why))
}

/// Writes the position, unless Redis lacks an entry up to `acknowledged`. `serial`: how many times it
/// was written under this claim, with this one.
pub(crate) async fn write_state(
    client: &mut MultiplexedConnection,
    config: &RedisConfig,
    (claim, serial): (&str, u64),
    state: &str,
    acknowledged: EntryId,
) -> Result<(), Failure> {
    let result: Vec<String> = SCRIPTS[2]
        .key(&config.stream)
        .key(owner_key(&config.stream))
        .arg(claim)
        .arg(serial)
        .arg(state)
        .arg(acknowledged.to_string())
        .invoke_async(client)
        .await?;
    let result: Vec<_> = result.iter().map(String::as_str).collect();
    match result.as_slice() {
        ["ok"] => Ok(()),
        ["fenced", holder] => Err(fenced(holder)),
        ["top", found, top] => Err(moved(&config.stream, found, top)),
        ["lost", last] => Err(Failure::Unusable(format!(
            "the last event in stream {} has id {last}, and Redis has acknowledged {acknowledged}",
            config.stream
        ))),
        ["late", _] => Err(Failure::Unusable("a later position is written already".to_owned())),
        _ => Err(unexpected()),
    }
}

/// Makes `writer` the only one that may add entries; returns the generation and the last event's id.
pub(super) async fn sync(
    client: &mut MultiplexedConnection,
    config: &RedisConfig,
    claim: &str,
    writer: &str,
) -> Result<(u8, EntryId), Failure> {
    let [kind, found, generation, last, top]: [String; 5] = SCRIPTS[3]
        .key(&config.stream)
        .key(owner_key(&config.stream))
        .arg(claim)
        .arg(writer)
        .invoke_async::<Vec<String>>(client)
        .await?
        .try_into()
        .map_err(|_| unexpected())?;
    if kind != "ok" {
        return Err(fenced(&found));
    }
    let (generation, last, top) = parsed(&generation, &last, &top)?;
    check_top(&config.stream, top, EntryId::from_text(&found))?;
    Ok((generation, last))
}

/// The field that an entry has which was a dead letter.
pub(super) const REPLAYED: &str = "replayed";

/// What became of a dead letter.
pub(super) enum Moved {
    /// It is in the stream of events, and no dead letter any more.
    Done,
    /// It was no dead letter any more: another replay has moved it.
    Taken,
}

/// Moves the dead letter with this id to the stream, as an entry that has also what `add_fields` adds.
pub(super) async fn move_letter(
    client: &mut MultiplexedConnection,
    config: &RedisConfig,
    letter: &str,
    add_fields: impl FnOnce(&mut Cmd),
) -> Result<Moved, Failure> {
    let (stream, mut command) = (&config.stream, redis::cmd("EVAL"));
    command
        .arg(format!("{TOP}{BEHIND}{MOVE}"))
        .arg(3)
        .arg(stream)
        .arg(owner_key(stream))
        .arg(&config.dead_letters)
        .arg(letter)
        .arg(config.maxlen.map_or_else(String::new, |maxlen| maxlen.to_string()));
    command.arg(REPLAYED).arg("true");
    add_fields(&mut command);
    let result: Vec<String> = command.query_async(client).await?;
    let result: Vec<_> = result.iter().map(String::as_str).collect();
    Err(match result.as_slice() {
        ["ok"] => return Ok(Moved::Done),
        ["taken"] => return Ok(Moved::Taken),
        ["none"] => Failure::Unusable(format!(
            "there is no state key {}: let `walpost run` publish to the stream first",
            owner_key(stream)
        )),
        ["top", found, top] => moved(stream, found, top),
        ["gone"] => gone(stream),
        ["refused", reply] => Failure::of_entry(reply, 0),
        _ => unexpected(),
    })
}

/// The outcome of a batch of `count` entries.
pub(super) fn added(reply: &Value, count: usize, stream: &str) -> Result<(), Failure> {
    let Value::Array(parts) = reply else { return Err(unexpected()) };
    let [Value::Int(added), why @ ..] = parts.as_slice() else { return Err(unexpected()) };
    let text = |part: &Value| match part {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    };
    let why: Option<Vec<_>> = why.iter().map(text).collect();
    let why = why.ok_or_else(unexpected)?;
    let why: Vec<_> = why.iter().map(String::as_str).collect();
    Err(match why.as_slice() {
        [""] if usize::try_from(*added).is_ok_and(|added| added == count) => return Ok(()),
        ["fenced", holder] => fenced(holder),
        ["gap"] => Failure::Unusable("a batch before this one was not added".to_owned()),
        ["top", found, top] => moved(stream, found, top),
        ["gone"] => gone(stream),
        [""] => unexpected(),
        [reply] => Failure::of_entry(reply, usize::try_from(*added).unwrap_or_default()),
        _ => unexpected(),
    })
}

/// The claim of `holder` is in the state key instead of the one that was given.
fn fenced(holder: &str) -> Failure {
    if is_own(holder) { Failure::Superseded } else { Failure::Fenced }
}

/// The stream ends at `found`, which is not the last entry of walpost.
fn moved(stream: &str, found: &str, top: &str) -> Failure {
    let top = EntryId::from_text(top).unwrap_or_default();
    check_top(stream, top, EntryId::from_text(found)).err().unwrap_or_else(unexpected)
}

fn parsed(generation: &str, last: &str, top: &str) -> Result<(u8, EntryId, EntryId), Failure> {
    let fields = (generation.parse().ok(), EntryId::from_text(last), EntryId::from_text(top));
    match fields {
        (Some(generation), Some(last), Some(top)) if generation > 0 => Ok((generation, last, top)),
        _ => {
            Err(Failure::Unsupported("the state key has other contents than walpost's".to_owned()))
        }
    }
}

fn unexpected() -> Failure {
    Failure::Unusable("a script returned something unexpected".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::destination::parts::claims::nonce;

    fn reply(added: i64, why: &str) -> Value {
        Value::Array(vec![Value::Int(added), Value::BulkString(why.as_bytes().to_vec())])
    }

    #[test]
    fn a_batch_counts_as_added_only_if_each_entry_was() {
        assert_eq!(added(&reply(3, ""), 3, "s"), Ok(()));
        assert!(matches!(added(&reply(2, ""), 3, "s"), Err(Failure::Unusable(_))));
        let more = |why: &[&str]| {
            let text = |why: &&str| Value::BulkString(why.as_bytes().to_vec());
            let why = why.iter().map(text);
            Value::Array([Value::Int(0)].into_iter().chain(why).collect())
        };
        assert_eq!(added(&more(&["fenced", "other"]), 3, "s"), Err(Failure::Fenced));
        assert_eq!(added(&more(&["fenced", &nonce()]), 3, "s"), Err(Failure::Superseded));
        for why in [&["top", "5-1", "4-1"][..], &["top", "0-0", "4-1"], &["gone"]] {
            assert!(matches!(added(&more(why), 3, "s"), Err(Failure::Stream(_))), "{why:?}");
        }
        let full = added(&reply(1, "OOM command not allowed"), 3, "s");
        assert!(full.is_err_and(|error| error.to_string().contains("maxmemory")));
        assert!(added(&Value::Nil, 3, "s").is_err());
    }

    #[test]
    fn a_stream_that_others_wrote_to_is_refused() {
        let id = |text: &str| EntryId::from_text(text).expect("an id");
        let (low, high) = (id("72057594037927936-1"), id("72057594037927936-2"));
        assert_eq!(check_top("s", low, Some(low)), Ok(()));
        for (top, found, part) in [
            (low, Some(high), "another writer"),
            (high, Some(low), "made again, or restored"),
            (low, None, "does not exist any more"),
        ] {
            let error = check_top("s", top, found).expect_err(part).to_string();
            assert!(error.contains(part) && error.contains("walpost adopt"), "{error}");
        }
    }
}
