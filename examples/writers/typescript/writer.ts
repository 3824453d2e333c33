// Places and pays orders, and writes an event for each in the transaction that changes the order.
//
//     npm ci && npx tsc
//     DATABASE_URL=postgres://postgres@localhost/shop node writer.js 20
//
// The database has the outbox of `walpost init` and the table of examples/writers/shop.sql. An
// order that the database refuses is reported and skipped.
import pg from "pg";

interface Order {
  id: number;
  customer: string;
  totalCents: number;
}

/** Places and pays the orders 1 to `count`. */
async function write(database: string, count: number): Promise<void> {
  const client = new pg.Client({ connectionString: database });
  await client.connect();
  // No other schema can replace PostgreSQL's functions, operators and types.
  await client.query(`SET search_path = pg_catalog, pg_temp`);
  let placed = 0;
  let paid = 0;
  for (let id = 1; id <= count; id++) {
    const order = { id, customer: `customer ${id % 7}`, totalCents: id * 100 };
    try {
      await place(client, order);
      placed++;
    } catch (error) {
      console.error(`order ${id} is not placed: ${error}`);
    }
    try {
      await pay(client, order);
      paid++;
    } catch (error) {
      console.error(`order ${id} is not paid: ${error}`);
    }
  }
  await client.end();
  console.log(`placed ${placed}, paid ${paid}`);
}

/** The order and its event, one statement after the other. */
async function place(client: pg.ClientBase, order: Order): Promise<void> {
  await transaction(client, async () => {
    await client.query(
      `INSERT INTO public.orders (id, customer, total_cents) VALUES ($1, $2, $3)`,
      [order.id, order.customer, order.totalCents],
    );
    const payload = { customer: order.customer, total_cents: order.totalCents };
    await client.query(
      `INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, headers)
       VALUES ('order', $1, 'order_placed', $2, $3)`,
      [String(order.id), JSON.stringify(payload), JSON.stringify({ source: "shop" })],
    );
  });
}

/** Runs `work` in a transaction of this client. With a pool, take one client for all of it. */
async function transaction(client: pg.ClientBase, work: () => Promise<void>): Promise<void> {
  await client.query("BEGIN");
  try {
    await work();
    await client.query("COMMIT");
  } catch (error) {
    await client.query("ROLLBACK");
    throw error;
  }
}

/** The change and its event in one statement, which is a transaction by itself. */
async function pay(client: pg.ClientBase, order: Order): Promise<void> {
  const changed = await client.query(
    `WITH paid AS (
       UPDATE public.orders SET status = 'paid' WHERE id = $1 AND status = 'placed'
       RETURNING id, total_cents
     ), written AS (
       INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, headers)
       SELECT 'order', id::text, 'order_paid', jsonb_build_object('total_cents', total_cents), $2
       FROM paid
     )
     SELECT id FROM paid`,
    [order.id, JSON.stringify({ source: "shop" })],
  );
  if (changed.rowCount === 0) {
    throw new Error("there is no such order to pay");
  }
}

const [count] = process.argv.slice(2);
const database = process.env.DATABASE_URL;
if (count === undefined || database === undefined) {
  throw new Error("usage: DATABASE_URL=... node writer.js COUNT");
}
await write(database, Number(count));
