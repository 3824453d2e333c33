import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;

/**
 * Places and pays orders, and writes an event for each in the transaction that changes the order.
 *
 * <pre>
 * mvn dependency:copy-dependencies -DoutputDirectory=libs
 * DATABASE_URL='jdbc:postgresql://localhost/shop?user=postgres' java -cp 'libs/*' Writer.java 20
 * </pre>
 *
 * The database has the outbox of `walpost init` and the table of examples/writers/shop.sql. An
 * order that the database refuses is reported and skipped.
 */
class Writer {
    record Order(long id, String customer, long totalCents) {}

    public static void main(String[] arguments) throws SQLException {
        if (arguments.length != 1) {
            throw new IllegalArgumentException("usage: Writer COUNT, with DATABASE_URL");
        }
        write(System.getenv("DATABASE_URL"), Long.parseLong(arguments[0]));
    }

    /** Places and pays the orders 1 to `count`. */
    static void write(String database, long count) throws SQLException {
        int placed = 0;
        int paid = 0;
        try (var connection = DriverManager.getConnection(database)) {
            // No other schema can replace PostgreSQL's functions, operators and types.
            execute(connection, "SET search_path = pg_catalog, pg_temp");
            // Each statement would be a transaction of its own otherwise.
            connection.setAutoCommit(false);
            for (long id = 1; id <= count; id++) {
                var order = new Order(id, "customer " + id % 7, id * 100);
                if (inTransaction(connection, order, "placed", Writer::place)) {
                    placed++;
                }
                if (inTransaction(connection, order, "paid", Writer::pay)) {
                    paid++;
                }
            }
        }
        System.out.println("placed " + placed + ", paid " + paid);
    }

    interface Work {
        void run(Connection connection, Order order) throws SQLException;
    }

    /** Whether the work was committed. */
    static boolean inTransaction(Connection connection, Order order, String what, Work work)
            throws SQLException {
        try {
            work.run(connection, order);
            connection.commit();
            return true;
        } catch (SQLException error) {
            connection.rollback();
            System.err.printf("order %d is not %s: %s%n", order.id(), what, error.getMessage());
            return false;
        }
    }

    /** The order and its event, one statement after the other. */
    static void place(Connection connection, Order order) throws SQLException {
        execute(connection, """
            INSERT INTO public.orders (id, customer, total_cents) VALUES (?, ?, ?)""",
            order.id(), order.customer(), order.totalCents());
        execute(connection, """
            INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, headers)
            VALUES ('order', ?, 'order_placed',
                    jsonb_build_object('customer', ?::text, 'total_cents', ?::bigint),
                    '{"source": "shop"}')""",
            String.valueOf(order.id()), order.customer(), order.totalCents());
    }

    /** The change and its event in one statement, and so in one round trip. */
    static void pay(Connection connection, Order order) throws SQLException {
        var sql = """
            WITH paid AS (
              UPDATE public.orders SET status = 'paid' WHERE id = ? AND status = 'placed'
              RETURNING id, total_cents
            ), written AS (
              INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, headers)
              SELECT 'order', id::text, 'order_paid',
                     jsonb_build_object('total_cents', total_cents), '{"source": "shop"}'
              FROM paid
            )
            SELECT id FROM paid""";
        try (var statement = connection.prepareStatement(sql)) {
            statement.setLong(1, order.id());
            try (var rows = statement.executeQuery()) {
                if (!rows.next()) {
                    throw new SQLException("there is no such order to pay");
                }
            }
        }
    }

    static void execute(Connection connection, String sql, Object... values) throws SQLException {
        try (var statement = connection.prepareStatement(sql)) {
            for (int at = 0; at < values.length; at++) {
                statement.setObject(at + 1, values[at]);
            }
            statement.executeUpdate();
        }
    }
}
