import java.time.Duration;
import java.util.*;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.flink.api.common.JobStatus;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.*;
import org.apache.flink.api.common.state.*;
import org.apache.flink.api.common.typeinfo.*;
import org.apache.flink.api.java.tuple.*;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.*;
import org.apache.flink.runtime.state.*;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.datastream.*;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.async.*;
import org.apache.flink.streaming.api.functions.co.*;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.*;
import org.apache.flink.streaming.api.windowing.evictors.CountEvictor;
import org.apache.flink.streaming.api.windowing.triggers.*;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/**
 * A job with one operator of each kind that stores state itself. It writes operators.tar.gz of the golden savepoints.
 *
 * <p>Arguments: the directory for savepoints and checkpoints, the maximum parallelism, then options of Flink as
 * name=value. The option "forms" lists the formats of savepoints; with "async" in it, the job has an asynchronous
 * function.
 */
public class OpsCase {
    static final AtomicInteger SEEN = new AtomicInteger();
    static final int COUNT = 200;

    public enum Color { RED, GREEN }

    public static class Base {
        public int b = 7;

        public Base() {}
    }

    public static class Sub extends Base {
        public String s = "sub";

        public Sub() {}
    }

    public static class P {
        public long id;
        public String name;
        public Color color;
        public List<String> tags;
        public Map<String, Long> counts;
        public Base base;
        public Long boxed;

        public P() {}

        static P of(long value) {
            P made = new P();
            made.id = value;
            made.name = value % 5 == 0 ? null : "n" + value;
            made.color = value % 2 == 0 ? Color.RED : Color.GREEN;
            made.tags = List.of("t" + value);
            made.counts = new HashMap<>(Map.of("c", value));
            made.base = value % 3 == 0 ? new Sub() : new Base();
            made.boxed = value % 4 == 0 ? null : value;
            return made;
        }
    }

    /** No POJO: Flink writes it with Kryo. */
    public static class Opaque {
        private final long hidden;

        public Opaque(long hidden) {
            this.hidden = hidden;
        }
    }

    static class States extends KeyedProcessFunction<Tuple2<String, Integer>, Long, String> {
        ValueState<P> pojo;
        ValueState<Opaque> opaque;
        MapState<Long, String> ttlMap;
        ListState<P> ttlList;
        ReducingState<Long> reduced;
        AggregatingState<Long, String> aggregated;
        ValueState<Tuple3<Long, String, Double>> tuple;
        MapState<String, List<Long>> nested;

        @Override
        public void open(OpenContext context) {
            StateTtlConfig ttl = StateTtlConfig.newBuilder(Duration.ofHours(100)).build();
            RuntimeContext runtime = getRuntimeContext();
            pojo = runtime.getState(new ValueStateDescriptor<>("pojo", P.class));
            opaque = runtime.getState(new ValueStateDescriptor<>("opaque", TypeInformation.of(Opaque.class)));
            MapStateDescriptor<Long, String> map = new MapStateDescriptor<>("ttlmap", Types.LONG, Types.STRING);
            map.enableTimeToLive(ttl);
            ttlMap = runtime.getMapState(map);
            ListStateDescriptor<P> list = new ListStateDescriptor<>("ttllist", P.class);
            list.enableTimeToLive(ttl);
            ttlList = runtime.getListState(list);
            reduced = runtime.getReducingState(new ReducingStateDescriptor<>("red", Long::sum, Types.LONG));
            TypeInformation<Tuple2<Long, Long>> pair = Types.TUPLE(Types.LONG, Types.LONG);
            aggregated = runtime.getAggregatingState(new AggregatingStateDescriptor<>("agg", new SumAndCount(), pair));
            TypeInformation<Tuple3<Long, String, Double>> three = Types.TUPLE(Types.LONG, Types.STRING, Types.DOUBLE);
            tuple = runtime.getState(new ValueStateDescriptor<>("tup", three));
            nested = runtime.getMapState(new MapStateDescriptor<>("nested", Types.STRING, Types.LIST(Types.LONG)));
        }

        @Override
        public void processElement(Long value, Context context, Collector<String> out) throws Exception {
            pojo.update(P.of(value));
            opaque.update(new Opaque(value));
            ttlMap.put(value, "v" + value);
            ttlList.add(P.of(value));
            reduced.add(value);
            aggregated.add(value);
            tuple.update(Tuple3.of(value, "t" + value, value / 4.0));
            List<Long> before = nested.get("k" + value % 3);
            List<Long> after = before == null ? new ArrayList<>() : new ArrayList<>(before);
            after.add(value);
            nested.put("k" + value % 3, after);
            context.timerService().registerEventTimeTimer(1_000_000_000_000L + value);
            context.timerService().registerProcessingTimeTimer(9_000_000_000_000L + value);
        }
    }

    static class SumAndCount implements AggregateFunction<Long, Tuple2<Long, Long>, String> {
        @Override
        public Tuple2<Long, Long> createAccumulator() {
            return Tuple2.of(0L, 0L);
        }

        @Override
        public Tuple2<Long, Long> add(Long value, Tuple2<Long, Long> total) {
            return Tuple2.of(total.f0 + value, total.f1 + 1);
        }

        @Override
        public String getResult(Tuple2<Long, Long> total) {
            return total.toString();
        }

        @Override
        public Tuple2<Long, Long> merge(Tuple2<Long, Long> one, Tuple2<Long, Long> other) {
            return Tuple2.of(one.f0 + other.f0, one.f1 + other.f1);
        }
    }

    /** Never answers, so that its elements are in the savepoint. */
    static class Never extends RichAsyncFunction<Long, Long> {
        @Override
        public void asyncInvoke(Long value, ResultFuture<Long> answer) {}

        @Override
        public void timeout(Long value, ResultFuture<Long> answer) {}
    }

    static class OperatorState implements MapFunction<Long, Long>, CheckpointedFunction {
        @Override
        public Long map(Long value) {
            return value;
        }

        @Override
        public void snapshotState(FunctionSnapshotContext context) {}

        @Override
        public void initializeState(FunctionInitializationContext context) throws Exception {
            OperatorStateStore store = context.getOperatorStateStore();
            ListState<String> union = store.getUnionListState(new ListStateDescriptor<>("u", Types.STRING));
            union.add("u1");
            union.add("");
            ListState<P> split = store.getListState(new ListStateDescriptor<>("s", P.class));
            split.add(P.of(1));
            split.add(P.of(2));
            BroadcastState<String, P> broadcast =
                    store.getBroadcastState(new MapStateDescriptor<>("b", Types.STRING, TypeInformation.of(P.class)));
            broadcast.put("x", P.of(3));
            broadcast.put("y", P.of(4));
        }
    }

    static class WithRules extends KeyedBroadcastProcessFunction<String, Long, Long, String> {
        static final MapStateDescriptor<Long, String> RULES =
                new MapStateDescriptor<>("rules", Types.LONG, Types.STRING);

        @Override
        public void processElement(Long value, ReadOnlyContext context, Collector<String> out) throws Exception {
            getRuntimeContext().getState(new ValueStateDescriptor<>("v", Types.LONG)).update(value);
        }

        @Override
        public void processBroadcastElement(Long value, Context context, Collector<String> out) throws Exception {
            context.getBroadcastState(RULES).put(value, "r" + value);
        }
    }

    static class EmitNothing extends ProcessWindowFunction<Long, String, String, TimeWindow> {
        @Override
        public void process(String key, Context context, Iterable<Long> elements, Collector<String> out) {}
    }

    static class JoinNothing extends ProcessJoinFunction<Long, Long, String> {
        @Override
        public void processElement(Long left, Long right, Context context, Collector<String> out) {}
    }

    static class GroupNothing implements CoGroupFunction<Long, Long, String> {
        @Override
        public void coGroup(Iterable<Long> left, Iterable<Long> right, Collector<String> out) {}
    }

    public static void main(String[] arguments) throws Exception {
        String directory = "file://" + arguments[0];
        Configuration options = new Configuration();
        options.setString("execution.checkpointing.storage", "filesystem");
        options.setString("execution.checkpointing.dir", directory + "/checkpoints");
        options.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
        options.setString("rest.port", "0");
        String forms = "CANONICAL,NATIVE";
        for (String option : Arrays.asList(arguments).subList(2, arguments.length)) {
            String[] parts = option.split("=", 2);
            if (parts[0].equals("forms")) {
                forms = parts[1];
            } else {
                options.setString(parts[0], parts[1]);
            }
        }
        StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(2, options);
        env.setMaxParallelism(Integer.parseInt(arguments[1]));
        env.enableCheckpointing(1000);
        build(env, forms.contains("async"));
        JobClient job = env.executeAsync();
        while (job.getJobStatus().get() != JobStatus.RUNNING || SEEN.get() < COUNT) {
            Thread.sleep(100);
        }
        Thread.sleep(3000);
        for (SavepointFormatType form : SavepointFormatType.values()) {
            if (forms.contains(form.name())) {
                System.out.println(job.triggerSavepoint(directory + "/" + form, form).get(60, TimeUnit.SECONDS));
            }
        }
        job.cancel().get();
        System.exit(0);
    }

    static void build(StreamExecutionEnvironment env, boolean hasAsync) {
        // The two subtasks of the source send 0 to 99 and 50001 to 50100, and then wait.
        DataStream<Long> numbers = env.fromSequence(0, 100000)
                .uid("numbers")
                .flatMap((Long value, Collector<Long> out) -> {
                    if (value % 50000 >= COUNT / 2 + (value > 50000 ? 1 : 0)) {
                        Thread.sleep(50);
                        return;
                    }
                    SEEN.incrementAndGet();
                    out.collect(value);
                })
                .returns(Types.LONG)
                .uid("rows")
                .assignTimestampsAndWatermarks(WatermarkStrategy.<Long>forMonotonousTimestamps()
                        .withTimestampAssigner((value, time) -> 1_700_000_000_000L + value % 50000 * 1000))
                .uid("wm");
        discard(numbers.keyBy(
                        value -> Tuple2.of("key-" + value % 10, (int) (value % 3)),
                        Types.TUPLE(Types.STRING, Types.INT))
                .process(new States())
                .uid("states"));
        KeyedStream<Long, String> keyed = numbers.keyBy(value -> "key-" + value % 4, Types.STRING);
        TumblingEventTimeWindows thousandDays = TumblingEventTimeWindows.of(Duration.ofDays(1000));
        discard(keyed.window(thousandDays).evictor(CountEvictor.of(1000)).reduce(Long::sum).uid("evictor"));
        discard(keyed.window(EventTimeSessionWindows.withGap(Duration.ofDays(10)))
                .process(new EmitNothing())
                .uid("session"));
        discard(keyed.window(SlidingEventTimeWindows.of(Duration.ofDays(20), Duration.ofDays(10)))
                .aggregate(new SumAndCount())
                .uid("sliding"));
        discard(keyed.countWindow(1000, 300).reduce(Long::sum).uid("count"));
        discard(keyed.window(GlobalWindows.create()).trigger(CountTrigger.of(100000)).reduce(Long::sum).uid("global"));
        discard(keyed.window(thousandDays)
                .trigger(ContinuousEventTimeTrigger.of(Duration.ofDays(3)))
                .reduce(Long::sum)
                .uid("continuous"));
        discard(keyed.reduce(Long::sum).uid("sum"));
        if (hasAsync) {
            DataStream<Long> tenths = numbers.filter(value -> value % 10 == 0);
            discard(AsyncDataStream.unorderedWait(tenths, new Never(), 100, TimeUnit.DAYS, 10000).uid("async"));
        }
        discard(numbers.map(new OperatorState()).uid("opstate"));
        discard(keyed.connect(env.fromData(1L, 2L, 3L).uid("rules-source").broadcast(WithRules.RULES))
                .process(new WithRules())
                .uid("broadcast"));
        discard(keyed.intervalJoin(keyed)
                .between(Duration.ofSeconds(-5), Duration.ofDays(5))
                .process(new JoinNothing())
                .uid("interval"));
        discard(numbers.coGroup(numbers)
                .where(value -> "k" + value % 3, Types.STRING)
                .equalTo(value -> "k" + value % 3, Types.STRING)
                .window(thousandDays)
                .apply(new GroupNothing()));
    }

    static <T> void discard(DataStream<T> stream) {
        stream.sinkTo(new DiscardingSink<>());
    }
}
