import java.math.BigDecimal;
import java.time.*;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.flink.api.common.JobStatus;
import org.apache.flink.api.common.typeinfo.*;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.*;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.*;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.catalog.Column;
import org.apache.flink.types.Row;
import org.apache.flink.util.Collector;

/**
 * A job of twelve queries of Flink SQL. It writes sql.tar.gz of the golden savepoints, with -Drows=40.
 *
 * <p>Arguments: the directory for savepoints and checkpoints, the maximum parallelism, then options of Flink as
 * name=value. It needs Flink's table jars.
 */
public class SqlCase {
    static final AtomicInteger SEEN = new AtomicInteger();
    static final int COUNT = Integer.getInteger("rows", 200);

    static final String[] QUERIES = {
        "SELECT name, COUNT(*) AS c, SUM(cents) AS s, MAX(ts9) AS m, AVG(amount) AS av, MIN(`day`) AS dy"
                + " FROM src GROUP BY name",
        "SELECT flag, tiny, COUNT(DISTINCT cents) AS c, COUNT(DISTINCT name) AS c2, LAST_VALUE(ltz) AS l"
                + " FROM src GROUP BY flag, tiny",
        "SELECT window_start, window_end, ch, SUM(big) AS s"
                + " FROM TABLE(TUMBLE(TABLE src, DESCRIPTOR(ts), INTERVAL '10' SECOND))"
                + " GROUP BY window_start, window_end, ch",
        "SELECT window_start, window_end, ch, COUNT(*) AS s"
                + " FROM TABLE(HOP(TABLE src, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '10' SECOND))"
                + " GROUP BY window_start, window_end, ch",
        "SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY cents ORDER BY ts ASC) AS rn FROM src)"
                + " WHERE rn = 1",
        "SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY cents ORDER BY ts DESC) AS rn FROM src)"
                + " WHERE rn = 1",
        "SELECT * FROM (SELECT id, ch, cents, ts, ROW_NUMBER() OVER (PARTITION BY ch ORDER BY cents DESC) AS rn"
                + " FROM src) WHERE rn <= 3",
        "SELECT a.id, b.name, b.amount, b.`day`, b.tm, b.arr, b.m, b.r, b.bin"
                + " FROM src a JOIN src b ON a.id = b.cents",
        "SELECT a.id, b.name FROM src a"
                + " LEFT JOIN (SELECT ch, COUNT(*) AS c, MAX(name) AS name FROM src GROUP BY ch) b ON a.ch = b.ch",
        "SELECT a.id, b.name FROM src a JOIN src b"
                + " ON a.ch = b.ch AND a.ts BETWEEN b.ts - INTERVAL '1' SECOND AND b.ts",
        "SELECT ch, SESSION_START(ts, INTERVAL '1' MINUTE) AS st, COUNT(*) AS c"
                + " FROM src GROUP BY ch, SESSION(ts, INTERVAL '1' MINUTE)",
        "SELECT id, SUM(cents) OVER (PARTITION BY ch ORDER BY ts ROWS BETWEEN 5 PRECEDING AND CURRENT ROW) AS s"
                + " FROM src",
    };

    static final String[] NAMES = {
        "id", "name", "amount", "big", "day", "tm", "ts", "ts9", "ltz", "flag",
        "tiny", "small", "f", "d", "bin", "arr", "m", "r", "ch", "cents",
    };

    static final TypeInformation<Row> TYPE = Types.ROW_NAMED(
            NAMES,
            Types.LONG,
            Types.STRING,
            Types.BIG_DEC,
            Types.BIG_DEC,
            Types.LOCAL_DATE,
            Types.LOCAL_TIME,
            Types.LOCAL_DATE_TIME,
            Types.LOCAL_DATE_TIME,
            Types.INSTANT,
            Types.BOOLEAN,
            Types.BYTE,
            Types.SHORT,
            Types.FLOAT,
            Types.DOUBLE,
            Types.PRIMITIVE_ARRAY(Types.BYTE),
            Types.OBJECT_ARRAY(Types.STRING),
            Types.MAP(Types.STRING, Types.LONG),
            Types.ROW_NAMED(new String[] {"x", "y"}, Types.INT, Types.STRING),
            Types.STRING,
            Types.LONG);

    static final Schema SCHEMA = Schema.newBuilder()
            .column("id", DataTypes.BIGINT().notNull())
            .column("name", DataTypes.STRING())
            .column("amount", DataTypes.DECIMAL(10, 2))
            .column("big", DataTypes.DECIMAL(30, 5))
            .column("day", DataTypes.DATE())
            .column("tm", DataTypes.TIME(3))
            .column("ts", DataTypes.TIMESTAMP(3))
            .column("ts9", DataTypes.TIMESTAMP(9))
            .column("ltz", DataTypes.TIMESTAMP_LTZ(6))
            .column("flag", DataTypes.BOOLEAN())
            .column("tiny", DataTypes.TINYINT())
            .column("small", DataTypes.SMALLINT())
            .column("f", DataTypes.FLOAT())
            .column("d", DataTypes.DOUBLE())
            .column("bin", DataTypes.BYTES())
            .column("arr", DataTypes.ARRAY(DataTypes.STRING()))
            .column("m", DataTypes.MAP(DataTypes.STRING(), DataTypes.BIGINT()))
            .column("r", DataTypes.ROW(DataTypes.FIELD("x", DataTypes.INT()), DataTypes.FIELD("y", DataTypes.STRING())))
            .column("ch", DataTypes.STRING())
            .column("cents", DataTypes.BIGINT())
            .watermark("ts", "ts - INTERVAL '1' HOUR")
            .build();

    public static void main(String[] arguments) throws Exception {
        String directory = "file://" + arguments[0];
        Configuration options = new Configuration();
        options.setString("execution.checkpointing.storage", "filesystem");
        options.setString("execution.checkpointing.dir", directory + "/checkpoints");
        options.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
        options.setString("rest.port", "0");
        for (int index = 2; index < arguments.length; index++) {
            String[] parts = arguments[index].split("=", 2);
            options.setString(parts[0], parts[1]);
        }
        StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(2, options);
        env.setMaxParallelism(Integer.parseInt(arguments[1]));
        env.enableCheckpointing(2000);
        JobClient job = build(env).execute().getJobClient().get();
        while (job.getJobStatus().get() != JobStatus.RUNNING || SEEN.get() < COUNT) {
            Thread.sleep(100);
        }
        Thread.sleep(2000);
        for (SavepointFormatType form : SavepointFormatType.values()) {
            System.out.println(job.triggerSavepoint(directory + "/" + form, form).get(60, TimeUnit.SECONDS));
        }
        job.cancel().get();
        System.exit(0);
    }

    static StatementSet build(StreamExecutionEnvironment env) {
        // The two subtasks of the source send half of the rows each, and then wait.
        DataStream<Row> rows = env.fromSequence(0, 100000)
                .uid("numbers")
                .flatMap((Long value, Collector<Row> out) -> {
                    if (value % 50000 >= COUNT / 2 + (value > 50000 ? 1 : 0)) {
                        Thread.sleep(50);
                        return;
                    }
                    SEEN.incrementAndGet();
                    out.collect(row(value));
                })
                .returns(TYPE)
                .uid("rows");
        StreamTableEnvironment tables = StreamTableEnvironment.create(env);
        tables.createTemporaryView("src", rows, SCHEMA);
        StatementSet statements = tables.createStatementSet();
        for (int index = 0; index < QUERIES.length; index++) {
            Table result = tables.sqlQuery(QUERIES[index]);
            tables.createTemporaryView("v" + index, result);
            String columns = columnsOf(result);
            tables.executeSql("CREATE TEMPORARY TABLE sink" + index + columns + " WITH ('connector'='blackhole')");
            statements.addInsertSql("INSERT INTO sink" + index + " SELECT * FROM v" + index);
        }
        return statements;
    }

    static String columnsOf(Table table) {
        StringBuilder text = new StringBuilder(" (");
        for (Column column : table.getResolvedSchema().getColumns()) {
            String type = column.getDataType().getLogicalType().copy(true).asSerializableString();
            text.append(text.length() == 2 ? "" : ", ").append("`").append(column.getName()).append("` ");
            text.append(type.replace("*ROWTIME*", ""));
        }
        return text.append(")").toString();
    }

    /** Returns the row of a number; most columns of each tenth row are null. */
    static Row row(long v) {
        LocalDateTime start = LocalDateTime.of(2024, 1, 1, 0, 0);
        Row row = new Row(NAMES.length);
        row.setField(0, v);
        row.setField(6, start.plusSeconds(v % 1000));
        row.setField(19, v % 13);
        if (v % 10 == 9) {
            return row;
        }
        row.setField(1, "name-" + v % 7 + (v % 2 == 0 ? "" : " with a longer text é✓"));
        row.setField(2, BigDecimal.valueOf(v * 100 + 25, 2));
        row.setField(3, new BigDecimal("12345678901234567890.12345").add(BigDecimal.valueOf(v)));
        row.setField(4, LocalDate.of(2024, 1, 1).plusDays(v % 400));
        row.setField(5, LocalTime.ofSecondOfDay(v % 86400));
        row.setField(7, start.withNano((int) (v % 1000) * 1001 + 7));
        row.setField(8, Instant.ofEpochSecond(1700000000L + v, 123456000));
        row.setField(9, v % 2 == 0);
        row.setField(10, (byte) (v % 100 - 50));
        row.setField(11, (short) (v % 1000 - 500));
        row.setField(12, v / 4f);
        row.setField(13, v / 8d);
        row.setField(14, ("bytes" + v).getBytes());
        row.setField(15, new String[] {"a" + v, null, "a longer one " + v});
        row.setField(16, Map.of("k" + v, v));
        row.setField(17, Row.of((int) v, v % 2 == 0 ? "y" : "a long y of " + v));
        row.setField(18, "c" + v % 3);
        return row;
    }
}
