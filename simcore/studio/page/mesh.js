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

const WORDS = { framework: "framework", ...AXES, dp_shard: "data parallel", batch: "global batch", recompute: "recompute", loss: "loss" };

/* What a layout is, of a job: framework, degrees, batch of a step, and what others are offered without. */
export const layout_of = ({ framework, mesh, training: { global_batch_size: batch, recompute = "none", loss = "auto" } = {} }) => ({
  framework, mesh: short(mesh || {}), batch, recompute: typeof recompute === "string" ? recompute : JSON.stringify(recompute), loss });

/* What another layout has otherwise: "GPUs 16 \u2192 4", each a text. */
export const layout_changes = (before, after) => {
  const [one, other] = [before, after].map(({ mesh, ...others }) => ({ gpus: gpus_of(mesh), ...whole_mesh(mesh), ...others }));
  return Object.keys(WORDS).filter((key) => one[key] !== other[key]).map((key) => `${WORDS[key]} ${one[key] ?? "auto"} \u2192 ${other[key] ?? "auto"}`);
};
