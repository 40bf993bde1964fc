// Runs programs that its caller writes, in one process for many of them:
//
//     driver.mjs deno|@deno/kv|kv-connect-kit URL…
//
// Each line of standard input is {"id", "code", "at", "args"}: `code` is the body of an async function of a user's program,
// which sees `kv` (opened from the URL number `at`), the names in `args`, and `tools`. Each is answered by a line
// {"id", "result"} or {"id", "error": {"name", "message"}}, in the order in which they end. Values travel as JSON in
// which what JSON has no word for is an object with one key: {"$bigint": "5"}, and so on; see `show`.

const isDeno = "Deno" in globalThis;
const process = globalThis.process ?? (await import("node:process")).default;
const { createInterface } = await import("node:readline");
const AsyncFunction = (async () => {}).constructor;

const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
const unhex = (text) => Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));

const [kind, ...urls] = isDeno ? Deno.args : process.argv.slice(2);
const client = await load(kind);

async function load(kind) {
  if (kind === "deno") return { openKv: Deno.openKv, KvU64: Deno.KvU64 };
  const module = await import(kind);
  if (kind === "@deno/kv") return { openKv: module.openKv, KvU64: module.KvU64 };
  const { serialize, deserialize } = await import("node:v8");
  const accessToken = process.env.DENO_KV_ACCESS_TOKEN;
  const service = module.makeRemoteService({ accessToken, encodeV8: serialize, decodeV8: deserialize });
  const KvU64 = service.newKvU64(0n).constructor;
  return { openKv: service.openKv, KvU64 };
}

function show(value) {
  if (value === undefined) return { $undefined: true };
  if (value === null || typeof value === "boolean" || typeof value === "string") return value;
  if (typeof value === "bigint") return { $bigint: String(value) };
  if (typeof value === "number") return Number.isFinite(value) && !Object.is(value, -0) ? value : { $number: Object.is(value, -0) ? "-0" : String(value) };
  if (value instanceof client.KvU64) return { $u64: String(value.value) };
  if (value instanceof Date) return { $date: value.getTime() };
  if (value instanceof Uint8Array) return { $bytes: hex(value) };
  if (ArrayBuffer.isView(value)) return { $view: [value.constructor.name, hex(new Uint8Array(value.buffer, value.byteOffset, value.byteLength))] };
  if (value instanceof ArrayBuffer) return { $buffer: hex(new Uint8Array(value)) };
  if (value instanceof Map) return { $map: [...value].map(([key, item]) => [show(key), show(item)]) };
  if (value instanceof Set) return { $set: [...value].map(show) };
  if (value instanceof RegExp) return { $regexp: [value.source, value.flags] };
  if (value instanceof Error) return { $error: [value.name, value.message] };
  if (Array.isArray(value)) return Array.from(value, (item, index) => index in value ? show(item) : { $hole: true });
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, show(item)]));
}

function build(shown) {
  if (shown === null || typeof shown !== "object") return shown;
  if (Array.isArray(shown)) return shown.map(build);
  const [tag, content] = Object.entries(shown)[0] ?? [];
  switch (tag) {
    case "$undefined": return undefined;
    case "$bigint": return BigInt(content);
    case "$number": return Number(content);
    case "$u64": return new client.KvU64(BigInt(content));
    case "$date": return new Date(content);
    case "$bytes": return unhex(content);
    case "$map": return new Map(content.map(build));
    case "$set": return new Set(content.map(build));
  }
  return Object.fromEntries(Object.entries(shown).map(([key, item]) => [key, build(item)]));
}

// What programs often do; the rest they write themselves.
const tools = {
  ...client,
  kind,
  state: {}, // stays from one program to the next
  sleep: (ms) => new Promise((done) => setTimeout(done, ms)),
  async collect(iterator) {
    const found = [];
    for await (const entry of iterator) found.push(entry);
    return found;
  },
  // The error that a call throws, at once or later; what it returns instead is an error of the test.
  async refused(call) {
    try {
      await call();
    } catch (error) {
      return { name: error.name, message: error.message };
    }
    throw new Error("nothing was refused");
  },
};

// A watch of `@deno/kv` that the server refuses or that breaks also rejects a promise which no program can reach.
if (!isDeno) process.on("unhandledRejection", (error) => console.error("unhandled:", error));

const databases = [];
for (const url of urls) databases.push(await client.openKv(url));

async function run({ id, code, at, args }) {
  let answer;
  try {
    const program = new AsyncFunction("kv", "tools", ...Object.keys(args), code);
    answer = { id, result: show(await program(databases[at], tools, ...Object.values(args).map(build))) };
  } catch (error) {
    answer = { id, error: { name: error?.name ?? typeof error, message: error?.message ?? String(error) } };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}

process.stdout.write(JSON.stringify({ id: 0, result: null }) + "\n");
const lines = createInterface({ input: process.stdin });
lines.on("line", (line) => run(JSON.parse(line)));
lines.on("close", () => process.exit(0));
