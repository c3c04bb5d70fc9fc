//! Parsing of durations.

use std::time::Duration;

/// Parses seconds, or a number with a unit: `90`, `1.5s`, `5m`, `12h`, `90d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "expected a duration such as 90, 1.5s, 5m, 12h or 90d".to_owned();
    let is_number = |letter: char| letter.is_ascii_digit() || letter == '.';
    let (number, unit) = match text.find(|letter| !is_number(letter)) {
        Some(at) => text.split_at(at),
        None => (text, "s"),
    };
    let secs = match unit {
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * secs).map_err(|_| wrong())
}

/// Whole seconds, rounded up.
pub(crate) fn whole_secs(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, secs) in [
            ("0", 0.0),
            ("90", 90.0),
            ("0.1", 0.1),
            ("90s", 90.0),
            ("1.5s", 1.5),
            ("5m", 300.0),
            ("1.5h", 5_400.0),
            ("12h", 43_200.0),
            ("90d", 7_776_000.0),
        ] {
            assert_eq!(duration(text).unwrap(), Duration::from_secs_f64(secs), "{text}");
        }
        for text in
            ["", "d", ".", "1.2.3", "-1", "1w", "1e3", "inf", "99999999999999999999", "999999999999999999d"]
        {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_part_of_a_second_counts_as_one() {
        assert_eq!([0.0, 0.1, 1.0, 1.1].map(Duration::from_secs_f64).map(whole_secs), [0, 1, 1, 2]);
    }
}
