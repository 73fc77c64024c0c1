// Runs models in ONNX Runtime for Python: node javascript_worker.mjs NODE_MODULES PACKAGE REPLIES PARENT.
// Requests come on stdin; replies go to the descriptor REPLIES, since anything may print to stdout.
// A message is the length of a JSON header (4 bytes, little endian), the header, and the bytes of header.arrays.
import { readFileSync, readSync, readdirSync, writeSync } from 'node:fs';
import { createRequire } from 'node:module';
import { Worker } from 'node:worker_threads';

const [folder, name, replies, parent] = process.argv.slice(2);

// Also while a call runs, this process ends with its parent.
const watch = `const parent = require('node:worker_threads').workerData;
setInterval(() => process.ppid === parent || process.kill(process.pid, 'SIGKILL'), 1000);`;
new Worker(watch, { eval: true, workerData: Number(parent) });

const ort = createRequire(`${folder}/any.js`)(name);
const kinds = {
  float32: Float32Array, float64: Float64Array, float16: Uint16Array, bool: Uint8Array,
  uint8: Uint8Array, int8: Int8Array, uint16: Uint16Array, int16: Int16Array,
  uint32: Uint32Array, int32: Int32Array, uint64: BigUint64Array, int64: BigInt64Array,
};
const problems = new Map(); // number -> { feeds, outputs }
let session;

const threadCount = () => {
  try {
    return readdirSync('/proc/self/task').length;
  } catch {
    return NaN; // no Linux
  }
};

const requests = {
  async open({ path, files, folder, threads, options }) {
    const isWasm = name === 'onnxruntime-web';
    if (isWasm) {
      ort.env.wasm.numThreads = threads;
      // WebAssembly has no file system: it gets the bytes.
      options.externalData = files.map((file) => ({ path: file, data: readFileSync(`${folder}/${file}`) }));
    }
    const before = threadCount();
    session = await ort.InferenceSession.create(isWasm ? readFileSync(path) : path, options);
    // The pool is the calling thread and what was started now.
    const used = isWasm ? ort.env.wasm.numThreads : threadCount() - before + 1;
    return [{ threads: Number.isNaN(used) ? null : used, inputs: session.inputNames }];
  },

  async write({ path, options }) {
    const other = await ort.InferenceSession.create(path, options);
    await other.release();
    return [{}];
  },

  async release() {
    await session.release();
    problems.clear();
    return [{}];
  },

  async feed({ number, arrays }, bytes) {
    const tensors = arrays.map(({ type, shape }, index) => {
      const { buffer, byteLength } = bytes[index];
      const data = new kinds[type](buffer, 0, byteLength / kinds[type].BYTES_PER_ELEMENT);
      return new ort.Tensor(type, data, shape);
    });
    problems.set(number, { feeds: Object.fromEntries(arrays.map((each, index) => [each.name, tensors[index]])) });
    return [{}];
  },

  async run({ number }) {
    const problem = problems.get(number);
    problem.outputs = await session.run(problem.feeds);
    return [{}];
  },

  async outputs({ number }) {
    const found = Object.entries(problems.get(number).outputs);
    const arrays = found.map(([name, { type, dims }]) => ({ name, type, shape: dims }));
    if (arrays.some(({ type }) => !(type in kinds))) throw new Error('an output is text');
    return [{ arrays }, found.map(([, { data }]) => data)];
  },

  async visit({ numbers }) {
    const turns = numbers.map((number) => problems.get(number));
    const wall = new BigInt64Array(turns.length + 1);
    const cpu = new Float64Array(turns.length + 1);
    const now = process.hrtime.bigint;
    globalThis.gc();
    const before = process.resourceUsage();
    const read = (index) => {
      wall[index] = now();
      const { user, system } = process.cpuUsage();
      cpu[index] = user + system;
    };
    read(0);
    for (let index = 0; index < turns.length; index++) {
      turns[index].outputs = await session.run(turns[index].feeds);
      read(index + 1);
    }
    const after = process.resourceUsage();
    const faults = ({ minorPageFault, majorPageFault }) => minorPageFault + majorPageFault;
    const switches = after.involuntaryContextSwitches - before.involuntaryContextSwitches;
    const arrays = [
      { name: 'wall', type: 'int64', shape: [turns.length + 1] },
      { name: 'cpu', type: 'float64', shape: [turns.length + 1] },
    ];
    return [{ switches, faults: faults(after) - faults(before), arrays }, [wall, cpu]];
  },
};

function receive(length) {
  const bytes = new Uint8Array(length);
  for (let done = 0; done < length; ) {
    const got = readSync(0, bytes, done, length - done);
    if (got === 0) process.exit(0); // the parent is gone, or has closed us
    done += got;
  }
  return bytes;
}

function reply(header, datas = []) {
  const text = Buffer.from(JSON.stringify({ arrays: [], ...header }));
  const size = Buffer.alloc(4);
  size.writeUInt32LE(text.length);
  for (const each of [size, text, ...datas]) {
    const bytes = Buffer.from(each.buffer, each.byteOffset, each.byteLength);
    for (let done = 0; done < bytes.length; ) done += writeSync(Number(replies), bytes, done);
  }
}

for (;;) {
  const length = Buffer.from(receive(4).buffer).readUInt32LE();
  const header = JSON.parse(Buffer.from(receive(length)).toString());
  const bytes = header.arrays.map(({ bytes }) => receive(bytes));
  try {
    reply(...(await requests[header.request](header, bytes)));
  } catch (error) {
    reply({ error: String(error?.message ?? `WebAssembly stopped with ${error}`) });
  }
}
