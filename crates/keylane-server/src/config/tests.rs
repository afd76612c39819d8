//! Whole configs, right and wrong.

use std::collections::BTreeSet;
use std::time::Duration;

use keylane_router::dispatch::TargetList;
use keylane_router::plan::{
    Cascade, Envelope, OnExhausted, Overflow, PoolPlan, SourceKind, SourcePlan, Targets,
};

use super::*;

fn load_with(text: &str, env: &[(&str, &str)]) -> Result<Config, Problems> {
    let mut written = tree::parse(text, Some("my.toml".into())).map_err(Problems)?;
    let env = env
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_string()));
    env::apply(&mut written, &documented(), env);
    Config::from_tables(&written, &documented())
}

#[track_caller]
fn load(text: &str) -> Config {
    load_with(text, &[]).unwrap_or_else(|problems| panic!("{problems}"))
}

/// The problems, one text each.
#[track_caller]
fn wrong(text: &str) -> Vec<String> {
    let problems = load_with(text, &[]).expect_err("the config is wrong");
    problems.0.iter().map(ToString::to_string).collect()
}

/// Asserts the one problem's beginning.
#[track_caller]
fn one_wrong(text: &str, expected: &str) {
    let problems = wrong(text);
    assert_eq!(problems.len(), 1, "{problems:#?}");
    assert!(problems[0].starts_with(expected), "{problems:#?}");
}

#[test]
fn without_a_file_there_is_one_pool_and_one_embedded_queue() {
    let config = load("");
    assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.data, PathBuf::from("./keylane-data"));
    assert_eq!(config.plan.pools.len(), 1);
    let source = &config.plan.sources["default"];
    assert_eq!(*source, SourcePlan::embedded("default"));
    assert!(config.notices.is_empty());
}

#[test]
fn the_documented_defaults_are_the_plans_own() {
    let mut config = load("");
    let pool = config.plan.pools.get_mut("default").unwrap();
    // Depends on the machine.
    pool.concurrency = PoolPlan::default().concurrency;
    config.plan.sources.clear();
    assert_eq!(config.plan, Plan::default());
}

#[test]
fn every_option_that_is_read_is_documented() {
    let shown: BTreeSet<&str> = load("")
        .settings
        .iter()
        .map(|setting| setting.name)
        .collect();
    let text = "[[pools.default.keys]]\nmatch = \"x\"\nlane_capacity = 1\nlane_concurrency = 1\nper_key_rate = \"1/s\"";
    let all: BTreeSet<&str> = load(text)
        .settings
        .iter()
        .map(|setting| setting.name)
        .collect();
    for name in shown.union(&all) {
        let documented = |line: &str| {
            line.trim_start_matches(['#', ' '])
                .starts_with(&format!("{name} = "))
        };
        assert!(DOCUMENTED.lines().any(documented), "{name}");
    }
}

/// Also that a source which sets nothing but its type has right values.
#[test]
fn every_option_of_a_broker_is_documented_with_its_type() {
    let types = super::sources::TYPES.iter();
    for (name, text) in types.filter_map(|known| Some((known.name, known.documented?))) {
        let config = load(&format!("[sources.x]\ntype = {name:?}"));
        let table = |setting: &&Setting| setting.table == "sources.x";
        for Setting { name: option, .. } in config.settings.iter().filter(table) {
            let documented = |line: &str| line.starts_with(&format!("{option} = "));
            assert!(
                [DOCUMENTED, text]
                    .iter()
                    .any(|text| text.lines().any(documented)),
                "{name}: {option}"
            );
        }
    }
}

#[test]
fn a_pool_takes_what_it_does_not_set_from_the_documented_defaults() {
    let config = load("[pools.default]\nlane_capacity = 7\n[pools.mail]\nconcurrency = 20\n");
    assert_eq!(config.plan.pools["default"].lane_capacity.get(), 7);
    let mail = &config.plan.pools["mail"];
    assert_eq!(mail.concurrency.unwrap().get(), 20);
    assert_eq!(mail.lane_capacity.get(), 500);
}

#[test]
fn the_designs_example_is_understood() {
    let config = load(
        r#"
        [pools.mail]
        concurrency = 20
        rate = "100/s"
        overflow = "wait"
        on_exhausted = "park"
        targets = ["https://api.example.com"]
        drain = "finish"
        [pools.mail.timeout]
        total = "10s"
        [pools.mail.retry]
        max_attempts = 1
        [[pools.mail.keys]]
        match = "vip:*"
        lane_concurrency = 4
        [sources.high]
        type = "embedded"
        keyless = "parallel"
        [sources.raw]
        queue = "r"
        envelope = "raw"
        pool = "mail"
        target = "http://localhost/x"
        "#,
    );
    let mail = &config.plan.pools["mail"];
    assert_eq!(mail.rate.unwrap().burst, 10);
    assert_eq!(mail.overflow, Some(Overflow::Wait));
    assert_eq!(mail.on_exhausted, OnExhausted::Park);
    assert_eq!(
        mail.targets,
        Targets::Only(TargetList::parse(["https://api.example.com"]).unwrap())
    );
    assert_eq!(mail.drain, None);
    assert_eq!(mail.timeout.total, Duration::from_secs(10));
    assert_eq!(mail.keys[0].lane_concurrency.unwrap().get(), 4);
    let queue = "high".into();
    assert_eq!(
        config.plan.sources["high"].kind,
        SourceKind::Embedded { queue }
    );
    assert!(matches!(
        config.plan.sources["raw"].envelope,
        Envelope::Raw { .. }
    ));
    assert_eq!(config.plan.sources.len(), 2);
}

#[test]
fn the_environment_is_laid_over_the_file() {
    let text = "listen = \"127.0.0.1:1\"\n[pools.mail]\nconcurrency = 1\n";
    let env = [
        ("KEYLANE_LISTEN", "127.0.0.1:2"),
        ("KEYLANE_DATA", "7"),
        ("KEYLANE_POOLS__MAIL__CONCURRENCY", "20"),
        ("KEYLANE_POOLS__MAIL__RETRY__INITIAL", "2s"),
        ("KEYLANE_POOLS__MAIL__TARGETS", "[\"a\", \"b\"]"),
        ("KEYLANE_DEV__ENABLED", "false"),
    ];
    let config = load_with(text, &env).unwrap();
    assert_eq!(config.listen.port(), 2);
    assert_eq!(config.data, PathBuf::from("7"));
    assert!(!config.dev.enabled && config.dev.create_queues);
    let mail = &config.plan.pools["mail"];
    assert_eq!(mail.concurrency.unwrap().get(), 20);
    assert_eq!(mail.retry.initial, Duration::from_secs(2));
    let listed = TargetList::parse(["a", "b"]).unwrap();
    assert_eq!(mail.targets, Targets::Only(listed));
}

#[test]
fn a_wrong_variable_is_named() {
    let problems = load_with("", &[("KEYLANE_LISTN", "x")]).unwrap_err();
    let text = problems.to_string();
    assert!(
        text.starts_with("KEYLANE_LISTN: listn: there is no such option; did you mean `listen`?"),
        "{text}"
    );
}

#[test]
fn all_errors_come_at_once_with_line_and_remedy() {
    let problems = wrong(
        "lissten = 1\nstop_deadline = 5\n[pools.mail]\ncascade = \"bath\"\n[pools.mail.retry]\nmaxattempts = 1\n",
    );
    let expected = [
        "my.toml:2: stop_deadline: 5 is not allowed; give a duration such as",
        "my.toml:4: pools.mail.cascade: \"bath\" is not allowed; use \"key\" or \"batch\"",
        "my.toml:6: pools.mail.retry.maxattempts: there is no such option; did you mean `max_attempts`?",
        "my.toml:1: lissten: there is no such option; did you mean `listen`?",
    ];
    assert_eq!(problems.len(), expected.len(), "{problems:#?}");
    for start in expected {
        assert!(
            problems.iter().any(|p| p.starts_with(start)),
            "{start}\n{problems:#?}"
        );
    }
}

#[test]
fn a_value_where_a_table_belongs_is_an_error() {
    one_wrong(
        "breaker = 5",
        "my.toml:1: breaker: 5 is not allowed; give a table: [breaker]",
    );
    one_wrong(
        "[pools]\nmail = 5",
        "my.toml:2: pools.mail: 5 is not allowed; give a table",
    );
}

#[test]
fn a_breaker_that_could_never_open_is_refused_with_the_remedy() {
    let text = "`window` is below `min_lanes`, so that the breaker could never open; raise `window` or lower `min_lanes`";
    one_wrong(
        "[breaker]\nwindow = 4",
        &format!("my.toml:2: breaker.window: {text}"),
    );
    one_wrong(
        "[breaker]\nmin_lanes = 21",
        &format!("my.toml:2: breaker.min_lanes: {text}"),
    );
    load("[breaker]\nwindow = 4\nmin_lanes = 4");
}

#[test]
fn brokers_that_are_not_built_in_are_refused_by_name() {
    for broker in ["pulsar", "kafka"] {
        let text = format!("[sources.s]\ntype = \"{broker}\"\n");
        let expected = format!(
            "my.toml:2: sources.s.type: \"{broker}\" is not allowed; reading from {broker} is not built into this version"
        );
        one_wrong(&text, &expected);
    }
}

#[test]
fn what_this_version_cannot_do_is_refused() {
    one_wrong(
        "[pools.a]\noverflow = \"spill\"\nlane_scope = \"pool\"",
        "my.toml:2: pools.a.overflow: \"spill\" and lane_scope = \"pool\" exclude each other",
    );
    one_wrong(
        "listen = \"0.0.0.0:80\"",
        "my.toml:1: listen: 0.0.0.0:80 can be reached",
    );
}

#[test]
fn many_instances_are_refused_and_so_are_parking_and_spilling_with_them() {
    let problems = wrong(
        "[sources.s]\ninstances = \"many\"\n[pools.p]\non_exhausted = \"park\"\noverflow = \"spill\"\n",
    );
    assert_eq!(problems.len(), 3, "{problems:#?}");
    assert!(problems[0].contains("belongs to one program"));
    assert!(problems[1].contains("\"park\" of pool `p`"));
    assert!(problems[2].contains("\"spill\" of pool `p`"));
}

#[test]
fn what_a_source_cannot_do_for_a_pool_is_refused_all_at_once() {
    for kind in ["rabbitmq", "activemq", "sqs"] {
        let problems = wrong(&format!(
            "[pools.p]\non_exhausted = \"return\"\nlane_scope = \"pool\"\n[sources.s]\ntype = \"{kind}\"\n",
        ));
        assert_eq!(problems.len(), 2, "{kind}: {problems:#?}");
        let options = ["on_exhausted = \"return\"", "lane_scope = \"pool\""];
        for (problem, option) in problems.iter().zip(options) {
            assert!(
                problem.starts_with("my.toml:5: sources.s.type: "),
                "{problem}"
            );
            assert!(
                problem.contains(&format!("{option} of pool `p`")),
                "{problem}"
            );
        }
    }
    load("[pools.p]\non_exhausted = \"return\"\n[sources.s]\ntype = \"sqs\"\nqueue = \"s.fifo\"");
}

#[test]
fn values_that_contradict_each_other_are_errors() {
    one_wrong(
        "[pools.a]\nmax_message = \"1GiB\"",
        "my.toml:2: pools.a.max_message: `max_message` is above",
    );
    one_wrong(
        "[pools.a]\nbyte_budget = 10",
        "my.toml:2: pools.a.byte_budget: `max_message` is above",
    );
    one_wrong(
        "[pools.a.retry]\ninitial = \"1h\"",
        "my.toml:2: pools.a.retry.initial: `initial` is longer",
    );
    one_wrong(
        "[pools.a.timeout]\nconnect = \"2h\"",
        "my.toml:2: pools.a.timeout.connect: it is longer",
    );
    one_wrong(
        "[pools.a]\nbusy_max = \"1ms\"",
        "my.toml:2: pools.a.busy_max: it is shorter",
    );
}

#[test]
fn patterns_that_cannot_work_are_errors() {
    let keys = |entries: &str| format!("[pools.a]\nkeys = [{entries}]\n");
    one_wrong(
        &keys("{ match = \"\", lane_capacity = 1 }"),
        "my.toml:2: pools.a.[keys].match: the pattern is empty",
    );
    one_wrong(
        &keys("{ match = \"x\" }"),
        "my.toml:2: pools.a.[keys].match: it sets no limit",
    );
    let twice = "{ match = \"*\", lane_capacity = 1 }, { match = \"x\", lane_capacity = 1 }";
    one_wrong(
        &keys(twice),
        "my.toml:2: pools.a.[keys].match: it is never reached",
    );
    one_wrong(
        &keys("{ lane_capacity = 1 }"),
        "my.toml:2: pools.a.[keys].match: it is missing",
    );
}

#[test]
fn two_sources_of_one_queue_are_an_error() {
    one_wrong(
        "[sources.a]\nqueue = \"q\"\n[sources.b]\nqueue = \"q\"\n",
        "my.toml:4: sources.b.queue: source `a` reads",
    );
}

#[test]
fn a_queue_whose_name_fits_no_url_is_an_error() {
    one_wrong(
        "[sources.a]\nqueue = \"a/b\"\n",
        "my.toml:2: sources.a.queue: \"a/b\" is not allowed",
    );
    one_wrong(
        "[sources.\"a b\"]\nwindow = 1\n",
        "my.toml:2: sources.\"a b\".queue: the source's name",
    );
}

#[test]
fn a_raw_source_needs_a_target_and_a_pool_that_exists() {
    let problems = wrong("[pools.mail]\n[sources.a]\nenvelope = \"raw\"\npool = \"mial\"\n");
    assert_eq!(problems.len(), 2, "{problems:#?}");
    assert!(problems[0].contains("did you mean \"mail\"?"));
    assert!(problems[1].contains("envelope = \"raw\" needs it"));
    one_wrong(
        "[sources.a]\npool = \"default\"\n",
        "my.toml:2: sources.a.pool: it only means something",
    );
}

#[test]
fn cascade_by_batch_is_taken_with_a_notice() {
    let config = load("[pools.a]\ncascade = \"batch\"\n");
    assert_eq!(config.plan.pools["a"].cascade, Cascade::Batch);
    assert!(config.notices[0].starts_with("pool `a`: cascade"));
}

#[test]
fn the_example_for_those_who_come_from_flowcatalyst_is_right() {
    let config = load(include_str!("../../examples/as-flowcatalyst.toml"));
    let pool = &config.plan.pools["default"];
    assert_eq!(pool.retry.max_attempts.get(), 1);
    assert_eq!(pool.cascade, Cascade::Batch);
    assert_eq!(pool.drain, None);
    assert_eq!(pool.lane_capacity.get(), 500);
}

#[test]
fn the_documented_options_of_sqs_are_its_own_defaults() {
    let config = load("[sources.x]\ntype = \"sqs\"");
    let kind = SourceKind::Sqs(keylane_router::sqs::Options::new("x"));
    assert_eq!(config.plan.sources["x"].kind, kind);
}

#[test]
fn options_of_sqs_that_do_not_fit_are_named() {
    let wrong = wrong(
        r#"
        [sources.a]
        type = "sqs"
        queue = "orders.fifo"
        key = "group-id"
        visibility_timeout = "20s"
        access_key_id = "AKIA"
        accept_redrive = "perhaps"
        "#,
    );
    for part in [
        "sources.a.key: it is for standard queues",
        "sources.a.wait_time: 20s is more than three quarters of visibility_timeout",
        "sources.a.secret_access_key: access_key_id is set",
        "sources.a.accept_redrive: \"perhaps\" is not allowed; give true or false",
    ] {
        assert!(
            wrong.iter().any(|text| text.contains(part)),
            "{part}: {wrong:?}"
        );
    }
    assert_eq!(wrong.len(), 4, "{wrong:?}");
}

#[test]
fn the_secret_of_sqs_is_not_shown() {
    let config = load(
        r#"
        [sources.a]
        type = "sqs"
        access_key_id = "AKIA"
        secret_access_key = "hush"
        "#,
    );
    let shown = format!("{:?} {:?}", config.plan, config.settings);
    assert!(shown.contains("AKIA") && !shown.contains("hush"), "{shown}");
}

#[test]
fn the_documented_options_of_activemq_are_its_own_defaults() {
    let config = load("[sources.x]\ntype = \"activemq\"");
    let options = keylane_router::activemq::Options::new("amqp://127.0.0.1", "x");
    let kind = SourceKind::Activemq(options.expect("right"));
    assert_eq!(config.plan.sources["x"].kind, kind);
}

#[test]
fn options_of_activemq_that_do_not_fit_are_named() {
    let wrong = wrong(
        r#"
        [sources.a]
        type = "activemq"
        url = "amqp://me:hush@broker"
        user = "you"
        lease = "10ms"
        queue_settings = "trust"
        [sources.b]
        type = "activemq"
        url = "tcp://broker:61616"
        password = "hush"
        queue = ""
        [sources.c]
        type = "activemq"
        url = "amqp://broker"
        queue = "a"
        "#,
    );
    for part in [
        "sources.a.user: url has a user already",
        "sources.a.lease: \"10ms\" is not allowed; give at least \"1s\"",
        "sources.a.queue_settings: \"trust\" is not allowed",
        "sources.b.url: \"tcp://broker:61616\" is not allowed; give amqp://host:5672",
        "sources.b.password: there is no user for it",
        "sources.b.queue: \"\" is not allowed",
        "sources.c.queue: source `a` reads this queue already",
    ] {
        assert!(
            wrong.iter().any(|text| text.contains(part)),
            "{part}: {wrong:?}"
        );
    }
    assert_eq!(wrong.len(), 7, "{wrong:?}");
    assert!(!wrong.iter().any(|text| text.contains("hush")), "{wrong:?}");
}

#[test]
fn the_password_of_activemq_is_not_shown() {
    let config = load(
        r#"
        [sources.a]
        type = "activemq"
        url = "amqp://me:hush@broker"
        [sources.b]
        type = "activemq"
        user = "me"
        password = "hush"
        "#,
    );
    let shown = format!("{:?} {:?}", config.plan, config.settings);
    assert!(
        shown.contains("broker") && !shown.contains("hush"),
        "{shown}"
    );
}

#[test]
fn the_documented_options_of_rabbitmq_are_its_own_defaults() {
    use keylane_router::rabbitmq::Options;
    let config = load("[sources.x]\ntype = \"rabbitmq\"");
    let plan = &config.plan.sources["x"];
    let url = "amqp://guest:guest@127.0.0.1:5672/%2f";
    let options = Options::new(url, "x").sized(0, 0, crate::config::cpus::cpus());
    assert_eq!(plan.window, options.prefetch.unwrap().number);
    assert_eq!(plan.workers, options.workers.map(|workers| workers.number));
    assert_eq!(plan.kind, SourceKind::Rabbitmq(Box::new(options)));
}

#[test]
fn options_of_rabbitmq_that_do_not_fit_are_named() {
    let wrong = wrong(
        r#"
        [sources.a]
        type = "rabbitmq"
        url = "amqp://user:hush@host"
        queue = "q"
        workers = -1
        window = 5
        [sources.b]
        type = "rabbitmq"
        url = "amqp://user:hush@host"
        queue = "q"
        queue_type = "quorum"
        [sources.c]
        type = "rabbitmq"
        url = "amqp//hush"
        "#,
    );
    for part in [
        "sources.a.workers: -1 is not allowed",
        "sources.a.window: on RabbitMQ it is called prefetch",
        "sources.b.queue: source `a` is the same consumer",
        "sources.b.type: a quorum queue has no exclusive consumers",
        "sources.c.type: url is not like",
    ] {
        assert!(
            wrong.iter().any(|text| text.contains(part)),
            "{part}: {wrong:?}"
        );
    }
    assert_eq!(wrong.len(), 5, "{wrong:?}");
    assert!(!wrong.concat().contains("hush"), "{wrong:?}");
}

#[test]
fn gb_138_the_password_of_rabbitmq_is_not_shown() {
    let config = load("[sources.a]\ntype = \"rabbitmq\"\nurl = \"amqp://me:hush@host\"");
    let shown = format!("{:?} {:?}", config.plan, config.settings);
    assert!(
        shown.contains("me:***@host") && !shown.contains("hush"),
        "{shown}"
    );
}
