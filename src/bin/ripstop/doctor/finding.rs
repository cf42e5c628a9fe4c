//! What a check has found: what was seen, why it matters, and what to do.

use serde_json::{Value, json};

/// How a check ended, from the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CheckState {
    /// Everything is as it should be.
    Ok,
    /// The check does not apply here, or its facts cannot be seen from here.
    Skip,
    /// Worth knowing, and no fault.
    Note,
    /// Programs run, and something costs time or will fail under load.
    Warn,
    /// Programs do not run, or not over what is installed for them.
    Fail,
}

impl CheckState {
    const ALL: [Self; 5] = [Self::Ok, Self::Skip, Self::Note, Self::Warn, Self::Fail];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Skip => "skip",
            Self::Note => "note",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CheckFinding {
    /// Name of the check: its group, a dot and a word, such as `memory.locked`.
    pub(super) check: String,
    pub(super) state: CheckState,
    pub(super) seen: String,
    /// Why it matters; empty if nothing is to be done.
    pub(super) why: String,
    /// What to do; empty if nothing is to be done.
    pub(super) advice: String,
    /// True if `seen` differs between equal machines, or from one moment to the next.
    pub(super) varies: bool,
}

impl CheckFinding {
    pub(super) fn ok(check: &str, seen: impl Into<String>) -> Self {
        Self::new(check, CheckState::Ok, seen.into(), "", "")
    }

    pub(super) fn skip(check: &str, seen: impl Into<String>) -> Self {
        Self::new(check, CheckState::Skip, seen.into(), "", "")
    }

    pub(super) fn note(check: &str, seen: impl Into<String>, why: &str, advice: &str) -> Self {
        Self::new(check, CheckState::Note, seen.into(), why, advice)
    }

    pub(super) fn warn(check: &str, seen: impl Into<String>, why: &str, advice: &str) -> Self {
        Self::new(check, CheckState::Warn, seen.into(), why, advice)
    }

    pub(super) fn fail(check: &str, seen: impl Into<String>, why: &str, advice: &str) -> Self {
        Self::new(check, CheckState::Fail, seen.into(), why, advice)
    }

    /// Marks what was seen as different from one moment to the next, so that comparisons leave it out.
    pub(super) fn varying(self) -> Self {
        Self {
            varies: true,
            ..self
        }
    }

    fn new(check: &str, state: CheckState, seen: String, why: &str, advice: &str) -> Self {
        Self {
            check: check.to_owned(),
            state,
            seen,
            why: why.to_owned(),
            advice: advice.to_owned(),
            varies: false,
        }
    }

    /// Returns true if `name` is the name of the check or of its group.
    pub(super) fn is_called(&self, name: &str) -> bool {
        self.check == name || self.group() == name
    }

    pub(super) fn group(&self) -> &str {
        self.check.split('.').next().unwrap_or(&self.check)
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "check": self.check,
            "state": self.state.name(),
            "seen": self.seen,
            "why": self.why,
            "do": self.advice,
            "varies": self.varies,
        })
    }

    /// Parses a value that [`json`](Self::json) has made. Returns `None` for other values.
    pub(super) fn of_json(value: &Value) -> Option<Self> {
        let text = |name: &str| value.get(name)?.as_str().map(str::to_owned);
        Some(Self {
            check: text("check")?,
            state: CheckState::named(&text("state")?)?,
            seen: text("seen")?,
            why: text("why")?,
            advice: text("do")?,
            varies: value.get("varies")?.as_bool()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{CheckFinding, CheckState};

    #[test]
    fn a_finding_survives_json_and_anything_else_is_refused() {
        let finding = CheckFinding::warn("a.b", "c", "d", "e").varying();
        assert_eq!(CheckFinding::of_json(&finding.json()), Some(finding));
        assert_eq!(CheckFinding::of_json(&json!({"check": "a.b"})), None);
        let mut strange = CheckFinding::ok("a.b", "").json();
        strange["state"] = "fine".into();
        assert_eq!(CheckFinding::of_json(&strange), None);
    }

    #[test]
    fn a_check_is_called_by_its_name_or_its_group() {
        let finding = CheckFinding::ok("memory.locked", "");
        assert!(finding.is_called("memory") && finding.is_called("memory.locked"));
        assert!(!finding.is_called("mem") && !finding.is_called("locked"));
        assert!(CheckState::Fail > CheckState::Warn && CheckState::Skip > CheckState::Ok);
    }
}
