// The clock of a peer: from its first job until its database shows none left.
import pg from "pg";

export const [url, mode, rows, finished] = process.argv
  .slice(2)
  .map((each, place) => (place < 2 ? each : Number(each)));
export const tuned = mode === "tuned";
export const pool = new pg.Pool({ connectionString: url, max: 20 });

let begun = 0;
let ran = 0;
let allRan;
const allHaveRun = new Promise((resolve) => (allRan = resolve));

/** Note that `count` jobs run; called in the job. */
export function jobs(count) {
  if (ran === 0) begun = performance.now();
  ran += count;
  if (ran === rows) allRan();
}

/** Wait until all jobs have run and `countLeft` shows none; give the seconds. */
export async function untilFinished(countLeft) {
  await allHaveRun;
  while (Number((await pool.query(countLeft)).rows[0].count)) {
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
  return (performance.now() - begun) / 1000;
}

/** Print the figures for the one who started this process, and end it. */
export function tell(seconds, version) {
  if (ran !== rows) throw new Error(`${ran} jobs ran instead of ${rows}`);
  process.stdout.write(JSON.stringify({ rows, seconds, version }) + "\n", () => process.exit(0));
}
