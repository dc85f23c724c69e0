//! Writes metrics as OpenMetrics text
//! (<https://prometheus.io/docs/specs/om/open_metrics_spec/>), or as the older text of Prometheus
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>).

use std::fmt::{Display, Write};

/// Type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricKind {
    Counter,
    Gauge,
    Histogram,
    Info,
}

impl MetricKind {
    const fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }

    /// Returns the word of the older text, which has no kind for an information.
    const fn plain_word(self) -> &'static str {
        match self {
            Self::Info => "gauge",
            kind => kind.word(),
        }
    }

    /// Returns the suffix of the samples.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Info => "_info",
            Self::Gauge | Self::Histogram => "",
        }
    }
}

/// Units that a name may end with.
const UNITS: [&str; 5] = ["seconds", "bytes", "ratio", "dollars", "lsn"];

/// The two forms of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricsForm {
    OpenMetrics,
    /// Version 0.0.4: the lines about a family name it as its samples, and there are no units.
    Plain,
}

impl MetricsForm {
    /// Picks the form for a request's header Accept. As in Prometheus's own libraries, those get
    /// OpenMetrics that name it.
    pub(super) fn accepted_by(accept: &str) -> Self {
        if accept.to_ascii_lowercase().contains("application/openmetrics-text") {
            Self::OpenMetrics
        } else {
            Self::Plain
        }
    }

    /// Returns the value of the header Content-Type.
    pub(super) const fn content(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Plain => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// A text that is being written.
#[derive(Debug)]
pub(super) struct MetricsText {
    form: MetricsForm,
    text: String,
    family: String,
    suffix: &'static str,
}

impl MetricsText {
    pub(super) fn new(form: MetricsForm) -> Self {
        Self { form, text: String::new(), family: String::new(), suffix: "" }
    }

    /// Begins a family; its name goes on behind `flagstone_`, without the suffix of its kind.
    pub(super) fn family(&mut self, kind: MetricKind, name: &str, help: &str) -> &mut Self {
        self.family = format!("flagstone_{name}");
        self.suffix = kind.suffix();
        let family = &self.family;
        // Writing into a String cannot fail.
        if self.form == MetricsForm::Plain {
            let (suffix, word) = (self.suffix, kind.plain_word());
            let _ = writeln!(self.text, "# TYPE {family}{suffix} {word}");
            let _ = writeln!(self.text, "# HELP {family}{suffix} {help}");
            return self;
        }
        let _ = writeln!(self.text, "# TYPE {family} {}", kind.word());
        if let Some(unit) = UNITS.iter().find(|unit| name.rsplit('_').next() == Some(unit)) {
            let _ = writeln!(self.text, "# UNIT {family} {unit}");
        }
        let _ = writeln!(self.text, "# HELP {family} {help}");
        self
    }

    pub(super) fn counter(&mut self, name: &str, help: &str) -> &mut Self {
        self.family(MetricKind::Counter, name, help)
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str) -> &mut Self {
        self.family(MetricKind::Gauge, name, help)
    }

    /// Adds the samples of a histogram: its buckets, each with its greatest value and the number of
    /// values up to it, ascending; their number and their sum.
    pub(super) fn histogram(
        &mut self,
        labels: &[(&str, &dyn Display)],
        buckets: impl Iterator<Item = (f64, u64)>,
        count: u64,
        sum: f64,
    ) {
        self.suffix = "_bucket";
        for (most, count) in buckets {
            // Prometheus wants a decimal point.
            self.sample(&[labels, &[("le", &format_args!("{most:?}"))]].concat(), count);
        }
        self.sample(&[labels, &[("le", &"+Inf")]].concat(), count);
        self.suffix = "_count";
        self.sample(labels, count);
        self.suffix = "_sum";
        self.sample(labels, sum);
        self.suffix = "";
    }

    /// Adds a sample without labels.
    pub(super) fn value(&mut self, value: impl Display) -> &mut Self {
        self.sample(&[], value)
    }

    /// Adds a sample of the family.
    pub(super) fn sample(
        &mut self,
        labels: &[(&str, &dyn Display)],
        value: impl Display,
    ) -> &mut Self {
        let _ = write!(self.text, "{}{}", self.family, self.suffix);
        for (at, (name, text)) in labels.iter().enumerate() {
            self.text.push(if at == 0 { '{' } else { ',' });
            let _ = write!(self.text, "{name}=\"{}\"", escaped(&text.to_string()));
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
        self
    }

    /// Ends the text.
    pub(super) fn finish(mut self) -> String {
        if self.form == MetricsForm::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

/// Escapes the value of a label.
fn escaped(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(form: MetricsForm) -> String {
        let mut text = MetricsText::new(form);
        text.counter("calls", "Calls.").sample(&[("command", &"get"), ("x", &1)], 7);
        text.gauge("age_seconds", "Age.").value(0.5);
        text.family(MetricKind::Info, "build", "Build.").sample(&[("version", &"a\"b\\c\nd")], 1);
        text.family(MetricKind::Histogram, "time", "Time.");
        text.histogram(&[("x", &1)], [(0.5, 2), (1.0, 3)].into_iter(), 4, 7.5);
        text.finish()
    }

    #[test]
    fn families_have_type_unit_and_help() {
        let expected = "\
            # TYPE flagstone_calls counter\n\
            # HELP flagstone_calls Calls.\n\
            flagstone_calls_total{command=\"get\",x=\"1\"} 7\n\
            # TYPE flagstone_age_seconds gauge\n\
            # UNIT flagstone_age_seconds seconds\n\
            # HELP flagstone_age_seconds Age.\n\
            flagstone_age_seconds 0.5\n\
            # TYPE flagstone_build info\n\
            # HELP flagstone_build Build.\n\
            flagstone_build_info{version=\"a\\\"b\\\\c\\nd\"} 1\n\
            # TYPE flagstone_time histogram\n\
            # HELP flagstone_time Time.\n\
            flagstone_time_bucket{x=\"1\",le=\"0.5\"} 2\n\
            flagstone_time_bucket{x=\"1\",le=\"1.0\"} 3\n\
            flagstone_time_bucket{x=\"1\",le=\"+Inf\"} 4\n\
            flagstone_time_count{x=\"1\"} 4\n\
            flagstone_time_sum{x=\"1\"} 7.5\n\
            # EOF\n";
        assert_eq!(example(MetricsForm::OpenMetrics), expected);
    }

    #[test]
    fn the_older_text_names_families_as_their_samples() {
        let expected = "\
            # TYPE flagstone_calls_total counter\n\
            # HELP flagstone_calls_total Calls.\n\
            flagstone_calls_total{command=\"get\",x=\"1\"} 7\n\
            # TYPE flagstone_age_seconds gauge\n\
            # HELP flagstone_age_seconds Age.\n\
            flagstone_age_seconds 0.5\n\
            # TYPE flagstone_build_info gauge\n\
            # HELP flagstone_build_info Build.\n\
            flagstone_build_info{version=\"a\\\"b\\\\c\\nd\"} 1\n\
            # TYPE flagstone_time histogram\n\
            # HELP flagstone_time Time.\n\
            flagstone_time_bucket{x=\"1\",le=\"0.5\"} 2\n\
            flagstone_time_bucket{x=\"1\",le=\"1.0\"} 3\n\
            flagstone_time_bucket{x=\"1\",le=\"+Inf\"} 4\n\
            flagstone_time_count{x=\"1\"} 4\n\
            flagstone_time_sum{x=\"1\"} 7.5\n";
        assert_eq!(example(MetricsForm::Plain), expected);
    }

    #[test]
    fn those_who_accept_it_get_openmetrics() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4";
        assert_eq!(MetricsForm::accepted_by(prometheus), MetricsForm::OpenMetrics);
        for accept in ["", "*/*", "text/plain;version=0.0.4"] {
            assert_eq!(MetricsForm::accepted_by(accept), MetricsForm::Plain, "{accept}");
        }
    }
}
