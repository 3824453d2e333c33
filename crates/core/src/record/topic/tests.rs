//! Templates: how they are parsed, rendered and rejected.

use proptest::prelude::*;

use super::*;
use crate::record::route::tests::event;

fn template(text: &str) -> TopicTemplate {
    text.parse().expect("a template")
}

fn render(text: &str, aggregate_type: &'static str) -> Result<String, Poison> {
    let mut event = event();
    event.aggregate_type = Some(aggregate_type.as_bytes().into());
    let mut topic = String::new();
    template(text).render(&event, &mut topic).map(|()| topic)
}

#[test]
fn fields_replace_their_placeholders() {
    for (text, topic) in [
        ("outbox.event.{aggregate_type}", "outbox.event.OrderLine"),
        ("{aggregate_type}", "OrderLine"),
        ("{aggregate_type|lower}.{aggregate_id}", "orderline.7"),
        ("a-{aggregate_type|kebab}-z", "a-order-line-z"),
        ("{aggregate_type|snake}", "order_line"),
        ("{aggregate_type|snake|kebab}", "order-line"),
        ("{aggregate_type|lower|kebab}", "orderline"),
        ("orders", "orders"),
    ] {
        assert_eq!(render(text, "OrderLine").as_deref(), Ok(topic), "{text}");
        assert_eq!(template(text).to_string(), text);
    }
}

#[test]
fn words_are_separated_in_any_style() {
    for (from, to) in [
        ("OrderLine", "order-line"),
        ("orderLine", "order-line"),
        ("order_line", "order-line"),
        ("Order Line", "order-line"),
        ("ORDER_LINE", "order-line"),
        ("HTTPServer", "http-server"),
        ("OrderV2Line", "order-v2-line"),
        ("sales.OrderLine", "sales.order-line"),
        ("Order__Line-", "order-line"),
        ("ABC", "abc"),
    ] {
        assert_eq!(render("{aggregate_type|kebab}", from).as_deref(), Ok(to), "{from}");
    }
}

#[test]
fn other_names_are_columns_without_duplicates() {
    let template = template("{tenant}.{region}.{tenant|lower}");
    assert_eq!(template.placed(), ["tenant", "region"]);
    let mut event = event();
    event.placed = vec![Some(b"Acme".as_slice().into()), Some(b"eu".as_slice().into())];
    let mut topic = String::new();
    template.render(&event, &mut topic).expect("a topic");
    assert_eq!(topic, "Acme.eu.acme");
    event.placed.pop();
    let poison = template.render(&event, &mut String::new()).expect_err("no region");
    assert_eq!(poison.cause, Cause::MissingField { field: "region".to_owned() });
}

#[test]
fn a_field_with_an_invalid_topic_is_poison_with_the_reason() {
    for (value, reason) in
        [("Order Line", "' '"), ("größe", "'ö'"), ("a/b", "'/'"), ("a\0", "'\\0'")]
    {
        let poison = render("e.{aggregate_type}", value).expect_err(value);
        assert_eq!(poison.cause.key(), "invalid_topic");
        assert!(poison.to_string().contains(reason), "{poison}");
    }
    assert!(render("{aggregate_type}", "..").is_err());
    assert!(render(".{aggregate_type}", ".").is_err());
    let long = "a".repeat(250).leak();
    assert!(render("{aggregate_type}", long).is_err());
    assert!(render("{aggregate_type}", &long[1..]).is_ok());
    assert_eq!(
        render("e.{aggregate_type|kebab}", "_").expect_err("nothing is left").cause.key(),
        "missing_field"
    );
}

#[test]
fn a_field_that_is_not_utf_8_is_poison() {
    let mut event = event();
    event.aggregate_type = Some(b"\xFF".as_slice().into());
    let poison = template("{aggregate_type}").render(&event, &mut String::new());
    assert_eq!(poison.expect_err("not UTF-8").cause.key(), "undecodable");
}

#[test]
fn an_invalid_template_is_rejected_with_the_position() {
    for (text, sign, why) in [
        ("", 0, "empty"),
        (".", 0, "keeps for itself"),
        ("a.{aggregate_type", 2, "not closed"),
        ("a.{b{c}", 2, "not closed"),
        ("a.b}", 3, "not opened"),
        ("a.{}", 3, "missing"),
        ("a.{ b}", 3, "blanks"),
        ("a.{b|upper}", 5, "`upper` is not a modifier; the modifiers are lower, kebab, snake"),
        ("a.{b|lower|}", 11, "`` is not a modifier"),
        ("ä.b", 0, "'ä'"),
        ("a b{c}", 1, "' '"),
        ("{größe}/", 7, "'/'"),
        ("a{{b}}", 1, "not closed"),
        ("a.}}b", 2, "not opened"),
    ] {
        let error = text.parse::<TopicTemplate>().expect_err(text);
        assert_eq!(error.sign, sign, "{text}");
        assert!(error.why.contains(why), "{error}");
        assert!(error.to_string().contains("{aggregate_type|kebab}"), "{error}");
    }
    assert!("a".repeat(250).parse::<TopicTemplate>().is_err());
    assert!(format!("{}{{b}}", "a".repeat(249)).parse::<TopicTemplate>().is_err());
    assert!(format!("{}{{b}}", "a".repeat(248)).parse::<TopicTemplate>().is_ok());
}

#[test]
fn a_topic_name_is_validated_by_kafkas_rules() {
    for topic in ["a", "a.b_c-D9", "...", &"a".repeat(249)] {
        assert_eq!(check_topic(topic), Ok(()), "{topic}");
    }
    for (topic, fault) in [
        ("", TopicFault::Empty),
        (".", TopicFault::Dots),
        ("..", TopicFault::Dots),
        ("a,b", TopicFault::Sign(',')),
        (&"a".repeat(250), TopicFault::TooLong),
    ] {
        assert_eq!(check_topic(topic), Err(fault), "{topic}");
    }
}

proptest! {
    #[test]
    fn any_text_is_a_template_or_an_error(text in "[a-z{}|. ä]{0,20}") {
        if let Ok(template) = text.parse::<TopicTemplate>() {
            let _ = template.render(&event(), &mut String::new());
        }
    }

    #[test]
    fn a_rendered_text_is_a_topic_or_poison(value: String, modifier in "(\\|lower|\\|kebab|\\|snake){0,3}") {
        let mut event = event();
        event.aggregate_type = Some(value.as_bytes().into());
        let mut topic = String::new();
        let template = template(&format!("e.{{aggregate_type{modifier}}}"));
        if template.render(&event, &mut topic).is_ok() {
            prop_assert_eq!(check_topic(&topic), Ok(()));
        }
    }
}

#[test]
fn a_template_without_a_field_is_one_topic_for_all() {
    let all = |text: &str| text.parse::<TopicTemplate>().expect("a template");
    assert_eq!(all("orders").of_all().as_deref(), Some("orders"));
    assert_eq!(all("orders.{id}").of_all(), None);
    let rewrite = Rewrite::new("(.*)s", "all-$1").expect("a rewrite");
    assert_eq!(all("orders").rewritten(rewrite).of_all().as_deref(), Some("all-order"));
}

#[test]
fn an_invalid_topic_is_shortened() {
    for (template, bytes) in [
        ("{aggregate_type}", 250),
        ("e.{aggregate_type|snake}", 5000),
        ("{aggregate_type}", 1 << 20),
    ] {
        let text = "Ab".repeat(bytes / 2).leak();
        let poison = render(template, text).expect_err("too long");
        let Cause::InvalidTopic { topic, why } = &poison.cause else { panic!("{poison}") };
        assert!(topic.len() < 500 && why.contains("249"), "{poison}");
        assert!(bytes < 450 || topic.ends_with(" bytes)"), "{topic}");
    }
    let blanks = format!("a{}b", " ".repeat(1000)).leak();
    assert_eq!(render("{aggregate_type|kebab}", blanks).expect("a short one"), "a-b");
}
