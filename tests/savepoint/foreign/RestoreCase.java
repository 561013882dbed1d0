import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.StateTtlConfig;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/**
 * Restores a savepoint and prints all of its state, one line each. Arguments: savepoint, max parallelism, number of
 * keys, options.
 */
public class RestoreCase {
    static synchronized void print(Object... parts) {
        StringBuilder line = new StringBuilder("FOUND");
        for (Object part : parts) {
            line.append("|").append(part);
        }
        System.out.println(line);
    }

    static class Reading extends KeyedProcessFunction<String, String, String> {
        private ValueState<Long> count;
        private ValueState<Long> timed;
        private ListState<Long> list;
        private MapState<String, Long> map;
        private MapState<String, Long> timedMap;

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
            list = getRuntimeContext().getListState(new ListStateDescriptor<>("list", Types.LONG));
            map = getRuntimeContext().getMapState(new MapStateDescriptor<>("map", Types.STRING, Types.LONG));
            ValueStateDescriptor<Long> ofTimed = new ValueStateDescriptor<>("timed", Types.LONG);
            ofTimed.enableTimeToLive(StateTtlConfig.newBuilder(Duration.ofHours(1)).build());
            timed = getRuntimeContext().getState(ofTimed);
            MapStateDescriptor<String, Long> ofMap = new MapStateDescriptor<>("timed map", Types.STRING, Types.LONG);
            ofMap.enableTimeToLive(StateTtlConfig.newBuilder(Duration.ofHours(1)).build());
            timedMap = getRuntimeContext().getMapState(ofMap);
        }

        @Override
        public void processElement(String key, Context context, Collector<String> out) throws Exception {
            Map<String, Long> entries = new TreeMap<>();
            map.entries().forEach(entry -> entries.put(entry.getKey(), entry.getValue()));
            List<Long> elements = new ArrayList<>();
            list.get().forEach(elements::add);
            Long inMap = timedMap.get("n");
            print("entry", key, count.value(), timed.value(), elements, entries, inMap);
        }

        @Override
        public void onTimer(long timestamp, OnTimerContext context, Collector<String> out) {
            print("timer", context.getCurrentKey(), timestamp);
        }
    }

    static class Elements extends RichMapFunction<String, String> implements CheckpointedFunction {
        @Override
        public String map(String value) {
            return value;
        }

        @Override
        public void snapshotState(FunctionSnapshotContext context) {}

        @Override
        public void initializeState(FunctionInitializationContext context) throws Exception {
            ListStateDescriptor<Long> split = new ListStateDescriptor<>("split", Types.LONG);
            ListStateDescriptor<String> union = new ListStateDescriptor<>("union", Types.STRING);
            context.getOperatorStateStore().getListState(split).get().forEach(one -> print("split", one));
            context.getOperatorStateStore().getUnionListState(union).get().forEach(one -> print("union", one));
            context.getOperatorStateStore()
                    .getBroadcastState(new MapStateDescriptor<>("rules", Types.STRING, Types.LONG))
                    .iterator()
                    .forEachRemaining(rule -> print("rule", rule.getKey(), rule.getValue()));
        }
    }

    static class Firing extends ProcessWindowFunction<Long, String, String, TimeWindow> {
        @Override
        public void process(String key, Context context, Iterable<Long> sums, Collector<String> out) {
            sums.forEach(sum -> print("window", key, context.window().getStart(), context.window().getEnd(), sum));
        }
    }

    public static void main(String[] arguments) throws Exception {
        Configuration options = new Configuration();
        options.setString("execution.state-recovery.path", "file://" + arguments[0]);
        options.setString("rest.port", "0");
        for (int index = 3; index < arguments.length; index++) {
            String[] option = arguments[index].split("=", 2);
            options.setString(option[0], option[1]);
        }
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(2, options);
        environment.setMaxParallelism(Integer.parseInt(arguments[1]));
        List<String> keys = new ArrayList<>();
        for (int index = 0; index < Integer.parseInt(arguments[2]); index++) {
            keys.add("key-" + index);
        }
        Collections.addAll(keys, "", "K\u00f6ln \u2713 \ud83d\ude00");
        DataStream<String> stream = environment.fromData(keys).uid("keys");
        stream.keyBy(key -> key, Types.STRING).process(new Reading()).uid("counting").name("counting");
        stream.map(new Elements()).uid("elements").setParallelism(2);
        stream.filter(key -> false)
                .map(key -> 1L)
                .returns(Types.LONG)
                .keyBy(one -> "", Types.STRING)
                .window(TumblingEventTimeWindows.of(Duration.ofSeconds(10)))
                .reduce(Long::sum, new Firing())
                .uid("windows");
        environment.execute();
        System.exit(0);
    }
}
