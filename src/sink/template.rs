//! A text with the placeholders `{topic}` and `{key}`: what a message's subject or routing key is made
//! of.

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template {
    pub(super) parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Static(String),
    Topic,
    Key,
}

impl Template {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after
                .split_once('}')
                .ok_or_else(|| format!("`{text}` has a `{{` that is not closed"))?;
            if !before.is_empty() {
                parts.push(Part::Static(before.to_owned()));
            }
            parts.push(match name {
                "topic" => Part::Topic,
                "key" => Part::Key,
                other => {
                    return Err(format!(
                        "`{text}` has {{{other}}}: {{topic}} and {{key}} are possible. Columns of \
                         the row are placeholders of record.topic and record.key"
                    ));
                }
            });
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Static(rest.to_owned()));
        }
        Ok(Self { parts })
    }

    /// The text for a topic; `append_key` writes the key, or fails with the reason why it cannot be
    /// a part of it.
    pub(super) fn render(
        &self,
        topic: &str,
        append_key: impl Fn(&mut String) -> Result<(), String>,
    ) -> Result<String, String> {
        let mut rendered = String::with_capacity(topic.len());
        for part in &self.parts {
            match part {
                Part::Static(text) => rendered.push_str(text),
                Part::Topic => rendered.push_str(topic),
                Part::Key => append_key(&mut rendered)?,
            }
        }
        Ok(rendered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_made_of_its_parts() {
        let append_key = |text: &mut String| {
            text.push('7');
            Ok(())
        };
        for (text, rendered) in [
            ("", ""),
            ("{topic}", "t"),
            ("{key}{topic}", "7t"),
            ("eu.{topic}.{key}.x", "eu.t.7.x"),
            ("}", "}"),
        ] {
            let template = Template::parse(text).expect(text);
            assert_eq!(template.render("t", append_key), Ok(rendered.to_owned()));
        }
        let refuse = |_: &mut String| Err("no key".to_owned());
        let template = Template::parse("{topic}{key}").expect("a template");
        assert_eq!(template.render("t", refuse), Err("no key".to_owned()));
        for text in ["{topic", "{", "{}", "{tenant}", "{{key}}"] {
            assert!(Template::parse(text).is_err(), "{text}");
        }
    }
}
