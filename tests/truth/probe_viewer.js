// Has the web viewer of memory snapshots read what `rankscope export snapshot` writes, without a browser.
//
//     node tests/truth/probe_viewer.js MemoryViz.js mem.pickle
//
// MemoryViz.js is torch/utils/viz/MemoryViz.js of pytorch's repository; no registry has it, so `make truth` does not
// run this. Its functions are taken out of the file by name and called as its page does: unpickle, annotate, draw the
// timeline of every device, go back through events in the view of segments.
"use strict";

const fs = require("fs");
const [viewer, pickle] = process.argv.slice(2);
const source = fs.readFileSync(viewer, "utf8");

function named(name) {
  const start = source.indexOf(`function ${name}(`);
  return start < 0 ? "" : source.slice(start, source.indexOf("\n}\n", start) + 2);
}

const NAMES = ["version_space", "Segment", "Block", "formatSize", "formatAddr", "formatEvent", "annotate_snapshot",
  "elideRepeats", "frameFilter", "format_frames", "process_alloc_data", "unpickle", "unpickleData"];
const view = named("MemoryView");
const state = view.slice(view.indexOf("const sorted_segments"), view.lastIndexOf("return {\n    draw("));
const made = new Function(`${NAMES.map(named).join("\n")}
  function states(snapshot, device) { ${state} return simulate_memory; }
  return {unpickle, annotate_snapshot, process_alloc_data, states};`)();

const bytes = fs.readFileSync(pickle);
console.log = () => {};  // the viewer says that the file is not JSON
const snapshot = made.unpickle(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
made.annotate_snapshot(snapshot);

let wrong = 0;
for (const [device, events] of snapshot.device_traces.entries()) {
  const told = snapshot.rankscope.devices[device].peak_allocated_bytes;
  const drawn = made.process_alloc_data(snapshot, device, false, 15000);
  const back = made.states(snapshot, device);
  const outside = [0, events.length >> 2, events.length >> 1, events.length - 1].filter(at => {
    const [segments, blocks] = back(at);
    return blocks.some(b => !segments.some(s => b.addr >= s.addr && b.addr + b.size <= s.addr + s.size));
  });
  const right = drawn.max_size === told && outside.length === 0;
  wrong += !right;
  process.stdout.write(`device ${device}: ${drawn.elements_length} blocks, highest ${drawn.max_size} bytes, `
    + `${right ? "as the report" : `the report ${told}, blocks outside segments at events [${outside}]`}\n`);
}
process.exit(wrong ? 1 : 0);
