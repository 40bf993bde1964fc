// A Deno program that is measured: started by `bench.sides`, with the URL of a node (KV Connect) or the path of a file
// (Deno's own SQLite). It speaks as the clients of bench/kv_ends.py do, and knows the calls `set` and `get`.
import { createInterface } from "node:readline";

const digits = 12;
const kv = await Deno.openKv(Deno.args[0]);
const lines = createInterface({ input: (await import("node:process")).default.stdin })[Symbol.asyncIterator]();
const read = async () => {
  const { value, done } = await lines.next();
  return done ? null : JSON.parse(value);
};
const say = (what) => console.log(JSON.stringify(what));
const now = () => performance.now() / 1000;
const at = (times, part) => (times.length ? times[Math.min(times.length - 1, Math.floor(times.length * part))] : 0);

let number = 0;
let turn = 0;
let writes = 0;
const newest = new Map();
const written = (size) => String(++number).padStart(digits, "0").padEnd(size - 4, "x");

async function set(job) {
  const key = turn++ % job.keys;
  const value = written(job.size);
  const mine = number;
  await kv.set(["set", key], value);
  writes++;
  newest.set(key, Math.max(mine, newest.get(key) ?? 0));
}

async function get(job) {
  const entry = await kv.get(["set", ((turn++) * 7919) % job.keys]);
  if (entry.value === null) throw new Error("a key is not there that was written");
}

async function fill(job) {
  for (let key = newest.size; key < job.keys; key += 10) {
    const atomic = kv.atomic();
    for (let one = key; one < Math.min(key + 10, job.keys); one++) {
      atomic.set(["set", one], written(job.size));
      newest.set(one, number);
    }
    await atomic.commit();
  }
}

async function measure(job, call, wait, seconds) {
  const begin = now() + wait;
  const end = begin + seconds;
  const took = [];
  let ended = 0;
  const caller = async () => {
    for (let began = now(); began < end; began = now()) {
      await call(job);
      const after = now();
      if (began >= begin) took.push((after - began) * 1000);
      if (begin <= after && after < end) ended++;
    }
  };
  await Promise.all(Array.from({ length: job.callers }, caller));
  took.sort((one, other) => one - other);
  return { rate: ended / seconds, calls: ended, p50_ms: at(took, 0.5), p99_ms: at(took, 0.99), max_ms: at(took, 1) };
}

async function ping() {
  const begin = now();
  for (;;) {
    try {
      await kv.get(["ping"]);
      return { seconds: now() - begin };
    } catch (error) {
      if (now() > begin + 60) throw error;
      await new Promise((done) => setTimeout(done, 50));
    }
  }
}

async function check() {
  const stored = new Map();
  for await (const entry of kv.list({ prefix: ["set"] }, { batchSize: 500 })) {
    stored.set(entry.key[1], Number(entry.value.slice(0, digits)));
  }
  const there = [...newest].filter(([key, mine]) => (stored.get(key) ?? -1) >= mine).length;
  const found = { writes, keys: newest.size, there };
  writes = 0;
  return found;
}

console.log("ready");
for (let job = await read(); job !== null; job = await read()) {
  try {
    if (job.call === "set" || job.call === "get") await fill(job);
    say({});
    const moments = await read();
    if (job.call === "ping") say(await ping());
    else if (job.call === "check") say(await check());
    else say(await measure(job, { set, get }[job.call], moments.wait, moments.seconds));
  } catch (error) {
    say({ error: `${error.name}: ${error.message}` });
  }
}
Deno.exit(0);
