// Values between V8 and Python: what Node sees, in a form that Python can compare, and values that Node makes up.
//
//   node node_forms.js read            lines of hexadecimal bytes in, lines [form, bytes written again] out, or null
//   node node_forms.js make SEED COUNT lines [form, bytes by V8 itself, bytes by Node's v8.serialize] out
'use strict';
const v8 = require('v8');

const bits = (x) => { const b = Buffer.alloc(8); b.writeDoubleBE(x); return b.toString('hex'); };
const units = (s) => Array.from({ length: s.length }, (_, i) => s.charCodeAt(i));
const hex = (view) => Buffer.from(view.buffer, view.byteOffset, view.byteLength).toString('hex');
const scalar = (x) => x === null || typeof x !== 'object' || ArrayBuffer.isView(x) || x instanceof Date;

// Numbers and BigInts of integral value are one kind in Python, undefined is null, and containers count by identity.
const form = (x, seen = new Map()) => {
  if (x === undefined || x === null) return ['null'];
  if (typeof x === 'boolean') return ['boolean', x];
  if (typeof x === 'string') return ['string', units(x)];
  if (typeof x === 'bigint') return ['integer', x.toString()];
  if (typeof x === 'number') {
    if (Number.isInteger(x) && !Object.is(x, -0)) return ['integer', BigInt(x).toString()];
    return ['number', Number.isNaN(x) ? 'NaN' : bits(x)];
  }
  if (x instanceof Date) return ['Date', x.getTime()];
  if (ArrayBuffer.isView(x)) return ['view', Buffer.isBuffer(x) ? 'Uint8Array' : x.constructor.name, hex(x)];
  if (x instanceof ArrayBuffer) return ['ArrayBuffer', Buffer.from(x).toString('hex'), x.resizable ? x.maxByteLength : null];
  if (x instanceof RegExp) { // as a literal: an empty source, slashes and line ends are shown in another form than stored
    const source = x.source.replaceAll('\\/', '/').replaceAll('\\n', '\n').replaceAll('\\r', '\r');
    return ['RegExp', units(source), x.flags];
  }
  if (x instanceof Boolean || x instanceof Number || x instanceof String || typeof x.valueOf() === 'bigint')
    return ['boxed', form(x.valueOf())];
  if (x instanceof Error)
    return ['Error', x.name, x.message, x.stack, Object.hasOwn(x, 'cause') ? form(x.cause, seen) : ['null']];
  if (seen.has(x)) return ['ref', seen.get(x)];
  seen.set(x, seen.size);
  const inner = (y) => form(y, seen);
  if (x instanceof Map) return ['Map', [...x].map(([k, v]) => [inner(k), inner(v)])];
  if (x instanceof Set) {
    const items = [...x].map(inner);
    return ['Set', [...x].every(scalar) ? items.map((y) => JSON.stringify(y)).sort() : items];
  }
  if (Array.isArray(x)) return ['Array', x.length, Object.entries(x).map(([k, v]) => [units(k), inner(v)])];
  return ['Object', Object.entries(x).map(([k, v]) => [units(k), inner(v)])];
};

const write = (x) => {
  const serializer = new v8.Serializer(); // V8's own form of views, which is Deno's; v8.serialize has another
  serializer.writeHeader();
  serializer.writeValue(x);
  return serializer.releaseBuffer().toString('hex');
};

class Maker {
  constructor(seed) { this.state = BigInt(seed) * 2n + 1n; this.made = []; }
  below(n) {
    this.state = (this.state * 6364136223846793005n + 1442695040888963407n) & ((1n << 64n) - 1n);
    return Number((this.state >> 33n) % BigInt(n));
  }
  pick(...choices) { return choices[this.below(choices.length)]; }
  string() {
    const alphabet = this.pick('ab01', 'aé\0ÿ', 'a겦ж', 'x😀\ud800\udc00\ud83d', '0123456789');
    return Array.from({ length: this.pick(0, 1, 2, 3, 5, 130, this.below(300)) }, () => alphabet[this.below(alphabet.length)]).join('');
  }
  number() {
    const n = this.below(2 ** 31) * this.pick(1, 0.5, 2 ** 20, 2 ** 22 + 1, 2 ** 30, 1e-9, 1e200);
    return this.pick(this.below(100), -this.below(100), n, -n, -0, NaN, Infinity, -Infinity, 2 ** 31, 2 ** 53, -(2 ** 31) - 1, 5e-324);
  }
  bigint() {
    let n = BigInt(this.below(2 ** 31));
    for (let i = this.below(6); i > 0; i--) n = (n << 31n) | BigInt(this.below(2 ** 31));
    return this.pick(n, -n, 0n, 1n, 1n << 64n, (1n << 64n) - 1n, -(1n << 63n));
  }
  buffer() {
    const size = 8 * this.below(4);
    const buffer = this.below(4) ? new ArrayBuffer(size) : new ArrayBuffer(size, { maxByteLength: size + 8 * this.below(3) });
    new Uint8Array(buffer).forEach((_, i, all) => { all[i] = this.below(256); });
    return buffer;
  }
  view() {
    const type = this.pick(Uint8Array, Uint8Array, Int8Array, Uint8ClampedArray, Int16Array, Uint16Array, Int32Array,
      Uint32Array, Float32Array, Float64Array, BigInt64Array, BigUint64Array, DataView);
    const buffer = this.buffer();
    const step = type.BYTES_PER_ELEMENT ?? 1;
    const offset = step * this.below(buffer.byteLength / step + 1);
    if (buffer.resizable && this.below(2)) return new type(buffer, offset);
    return new type(buffer, offset, this.below((buffer.byteLength - offset) / step + 1));
  }
  error() {
    const type = this.pick(Error, TypeError, RangeError, SyntaxError, EvalError, ReferenceError, URIError);
    const error = this.below(2) ? new type(this.string()) : new type(this.string(), { cause: this.scalar() });
    error.stack = this.string();
    return error;
  }
  date() { return new Date(this.pick(0, -1, 1) * this.below(2 ** 31) * this.pick(1, 1000) + this.below(1000)); }
  scalar() {
    switch (this.below(9)) {
      case 0: return this.pick(null, undefined, true, false);
      case 1: case 2: return this.number();
      case 3: return this.bigint();
      case 4: case 5: return this.string();
      case 6: return this.keep(this.date());
      case 7: return this.keep(this.view());
      default: return this.below(1000);
    }
  }
  rare() {
    switch (this.below(4)) {
      case 0: return new RegExp(this.pick('a+', '[é겦]', '(?:)', 'x\\/y'), this.pick('', 'g', 'gi', 'dgimsuy', 'y'));
      case 1: return Object(this.pick(true, false, this.number(), this.bigint(), this.string()));
      case 2: return this.error();
      default: return this.buffer();
    }
  }
  keep(x) { this.made.push(x); return x; }
  value(depth) {
    if (depth === 0 || this.below(4) === 0) return this.below(8) ? this.scalar() : this.keep(this.rare());
    if (this.made.length && this.below(6) === 0) return this.made[this.below(this.made.length)]; // shared, or a cycle
    const count = this.pick(0, 1, 2, 3, this.below(8));
    const each = (put) => { for (let i = 0; i < count; i++) put(i); };
    switch (this.below(7)) {
      case 0: case 1: { const a = this.keep([]); each(() => a.push(this.value(depth - 1))); return a; }
      case 2: case 3: {
        const o = this.keep({});
        each(() => { o[this.pick(this.string(), String(this.below(50)), '4294967295')] = this.value(depth - 1); });
        return o;
      }
      case 4: {
        const m = this.keep(new Map());
        each(() => m.set(this.below(3) ? this.scalar() : this.value(depth - 1), this.value(depth - 1)));
        return m;
      }
      case 5: {
        const s = this.keep(new Set());
        each(() => s.add(this.below(3) ? this.scalar() : this.value(depth - 1)));
        return s;
      }
      default: {
        const a = this.keep([]);
        each(() => { a[this.below(10)] = this.value(depth - 1); });
        if (this.below(3) === 0) a.length += this.below(1000);
        if (this.below(2) === 0) a[this.pick('name', 'é', '-1')] = this.scalar();
        return a;
      }
    }
  }
}

if (process.argv[2] === 'read') {
  for (const line of require('fs').readFileSync(0, 'utf8').split('\n').filter(Boolean)) {
    let answer = null; // what V8 itself refuses
    try {
      const value = v8.deserialize(Buffer.from(line, 'hex'));
      answer = [form(value), write(value)];
    } catch { }
    console.log(JSON.stringify(answer));
  }
} else {
  const maker = new Maker(process.argv[3]);
  for (let i = 0; i < Number(process.argv[4]); i++) {
    maker.made = [];
    const value = maker.value(4);
    console.log(JSON.stringify([form(value), write(value), v8.serialize(value).toString('hex')]));
  }
}
