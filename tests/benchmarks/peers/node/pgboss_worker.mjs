// Peer: pg-boss. Default: jobs fetched and completed one by one, because a worker of its own with
// default options runs one job every two seconds; tuned: a worker with batches of 500 in bursts.
import { readFileSync } from "node:fs";
import { PgBoss } from "pg-boss";
import { finished, jobs, pool, rows, tell, tuned, untilFinished, url } from "./clock.mjs";

const LEFT = "select count(*) from pgboss.job where name = 'bench' and state < 'completed'";
const FINISHED = `
insert into pgboss.job (name, data, state, started_on, completed_on)
select 'bench', '{"number": 1}', 'completed', now(), now()
  from generate_series(1, $1::int - (select count(*) from pgboss.job)) as n`;
const BATCH = 1000;
const TUNED = 500;

const boss = new PgBoss({ connectionString: url });
boss.on("error", (error) => console.error(error));
await boss.start();
await boss.createQueue("bench");
await pool.query(FINISHED, [finished]);
for (let first = 0; first < rows; first += BATCH) {
  const count = Math.min(BATCH, rows - first);
  await boss.insert("bench", Array.from({ length: count }, (_, n) => ({ data: { number: n } })));
}
await pool.query("vacuum analyze pgboss.job");
if (tuned) {
  const options = { batchSize: TUNED, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 };
  await boss.work("bench", options, async (batch) => jobs(batch.length));
} else {
  for (let batch; (batch = await boss.fetch("bench")).length; ) {
    jobs(batch.length);
    await boss.complete("bench", batch[0].id);
  }
}
const seconds = await untilFinished(LEFT);
const { version } = JSON.parse(
  readFileSync(new URL("./node_modules/pg-boss/package.json", import.meta.url)),
);
tell(seconds, version);
