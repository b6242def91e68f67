// Peer: graphile-worker. Default: one job at a time; tuned: fetches 500, 24 at a time, completes together.
import { readFileSync } from "node:fs";
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import { jobs, pool, rows, tell, tuned, untilFinished } from "./clock.mjs";

// What is finished is deleted, so there is never anything finished to add.
const LEFT = "select count(*) from graphile_worker.jobs";
const BATCH = 1000;
const TUNED = {
  worker: {
    concurrentJobs: 24,
    localQueue: { size: 500 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
  },
};

const utils = await makeWorkerUtils({ pgPool: pool });
await utils.migrate();
for (let first = 0; first < rows; first += BATCH) {
  const count = Math.min(BATCH, rows - first);
  const each = (_, n) => ({ identifier: "noop", payload: { number: n } });
  await utils.addJobs(Array.from({ length: count }, each));
}
await pool.query("vacuum analyze");
await run({
  pgPool: pool,
  logger: new Logger(() => () => {}),
  noHandleSignals: true,
  taskList: { noop: async () => jobs(1) },
  preset: tuned ? TUNED : {},
});
const seconds = await untilFinished(LEFT);
const { version } = JSON.parse(
  readFileSync(new URL("./node_modules/graphile-worker/package.json", import.meta.url)),
);
tell(seconds, version);
