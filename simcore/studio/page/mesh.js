/* Degrees of parallelism: their names, and a mesh in words. */
export const AXES = { gpus: "GPUs", tp: "tensor parallel", pp: "pipeline stages", cp: "context parallel", ep: "expert parallel",
  etp: "expert tensor parallel", dp_replicate: "replicas" };

/* Ranks of a mesh. */
export const gpus_of = (mesh) => ["pp", "dp_replicate", "dp_shard", "cp", "tp"].reduce((all, axis) => all * (mesh[axis] || 1), 1);

/* A mesh as a person writes it: degrees of one are left out. */
export const short = (mesh) => Object.fromEntries(Object.entries(mesh).filter(([name, value]) => value !== null && (value !== 1 || name === "etp")));

export const mesh_words = (mesh) => Object.entries(short(mesh)).map(([axis, n]) => `${axis} ${n}`).join(" ") || "one GPU";

/* A mesh with every degree. */
export const whole_mesh = (mesh = {}) => ({ pp: 1, dp_replicate: 1, dp_shard: 1, cp: 1, tp: 1, ep: 1, etp: null, ...mesh });
