import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A consumer that acts once on each event, though events come at least once: it adds up
 * what each customer has ordered.
 *
 * <pre>
 * mvn dependency:copy-dependencies -DoutputDirectory=libs
 * java -cp 'libs/*' Consumer.java localhost:9092 outbox.event.order billing \
 *     'jdbc:postgresql://localhost/billing?user=postgres' id
 * </pre>
 *
 * Brokers, topic, consumer group, database, and by what a repeated event is known: id,
 * idempotency-key or position. The database has the tables of sql/consumer_dedupe.sql and
 * examples/consumers/turnover.sql. An error ends it; started again, it resumes after the
 * last offset that it committed.
 */
class Consumer {
    public static void main(String[] arguments) throws Exception {
        if (arguments.length != 5) {
            throw new IllegalArgumentException(
                "usage: Consumer BROKERS TOPIC GROUP DATABASE id|idempotency-key|position");
        }
        consume(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4]);
    }

    /** Acts on each record and commits the offsets, until an error. */
    static void consume(String brokers, String topic, String group, String database, String by)
            throws SQLException {
        Map<String, Object> properties = Map.of(
            "bootstrap.servers", brokers,
            "group.id", group,
            "enable.auto.commit", "false",
            // Records of aborted transactions are not events: needed with exactly-once delivery.
            "isolation.level", "read_committed",
            "auto.offset.reset", "earliest");
        var text = new StringDeserializer();
        try (var connection = DriverManager.getConnection(database);
                var consumer = new KafkaConsumer<>(properties, text, text)) {
            // No other schema can replace PostgreSQL's functions, operators and types.
            execute(connection, "SET search_path = pg_catalog, pg_temp");
            connection.setAutoCommit(false);
            consumer.subscribe(List.of(topic));
            while (true) {
                for (var record : consumer.poll(Duration.ofSeconds(1))) {
                    if (isFirst(connection, by, record)) {
                        act(connection, record);
                    }
                    connection.commit();
                }
                // After the transactions: if this commit is lost, the records arrive again and are skipped.
                consumer.commitSync();
            }
        }
    }

    /**
     * Whether the event was not processed yet. No other consumer can process it until the
     * transaction ends.
     */
    static boolean isFirst(Connection connection, String by, ConsumerRecord<String, String> record)
            throws SQLException {
        switch (by) {
            case "id" -> {
                var sql = """
                    INSERT INTO public.processed_events (consumer, event_id) VALUES ('billing', ?)
                    ON CONFLICT DO NOTHING""";
                return execute(connection, sql, header(record, "id")) == 1;
            }
            case "idempotency-key" -> {
                // A header, or a member of the payload. An event with neither is an error here.
                var sql = """
                    INSERT INTO public.processed_events (consumer, event_id)
                    VALUES ('billing', nullif(coalesce(?, ?::text::jsonb ->> 'idempotencyKey'), ''))
                    ON CONFLICT DO NOTHING""";
                return execute(connection, sql, header(record, "idempotency_key"), record.value()) == 1;
            }
            case "position" -> {
                var sql = """
                    INSERT INTO public.processed_positions AS seen
                      (consumer, topic, partition, last_position)
                    VALUES ('billing', ?, ?, ?)
                    ON CONFLICT (consumer, topic, partition)
                    DO UPDATE SET last_position = excluded.last_position
                      WHERE seen.last_position < excluded.last_position""";
                var position = header(record, "walpost.position");
                return execute(connection, sql, record.topic(), record.partition(), position) == 1;
            }
            default -> throw new IllegalArgumentException(
                "deduplicate by id, idempotency-key or position, not by " + by);
        }
    }

    /** What the event is to cause, in the same transaction. */
    static void act(Connection connection, ConsumerRecord<String, String> record) throws SQLException {
        // An order that is placed names its customer, and one that is paid does not.
        var sql = """
            INSERT INTO public.turnover AS sum (customer, orders, total_cents)
            SELECT placed ->> 'customer', 1, (placed ->> 'total_cents')::bigint
              FROM (SELECT ?::text::jsonb AS placed) AS event
             WHERE placed ->> 'customer' IS NOT NULL
            ON CONFLICT (customer)
            DO UPDATE SET orders = sum.orders + 1,
                          total_cents = sum.total_cents + excluded.total_cents""";
        execute(connection, sql, record.value());
    }

    /** How many rows the statement changed. */
    static int execute(Connection connection, String sql, Object... values) throws SQLException {
        try (var statement = connection.prepareStatement(sql)) {
            for (int at = 0; at < values.length; at++) {
                statement.setObject(at + 1, values[at]);
            }
            return statement.executeUpdate();
        }
    }

    /** The text of a header; null where there is none, or where it is null or empty. */
    static String header(ConsumerRecord<String, String> record, String name) {
        var header = record.headers().lastHeader(name);
        if (header == null || header.value() == null || header.value().length == 0) {
            return null;
        }
        return new String(header.value(), StandardCharsets.UTF_8);
    }
}
