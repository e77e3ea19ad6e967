package lifecycle

import (
	"strconv"
	"time"
)

// MaxSigned is how far away the end of a signed endpoint may be.
const MaxSigned = 24 * time.Hour

// SignedUntil returns until when an endpoint is to be signed: text is an RFC 3339 time or a number
// of seconds from now. It returns KindInvalid for what is neither, for a time that is over or more
// than [MaxSigned] away, and for one after the sandbox's expiry.
func SignedUntil(text string, now, expiresAt time.Time) (time.Time, error) {
	const latest = int64(MaxSigned / time.Second)
	until, err := time.Parse(time.RFC3339, text)
	if err != nil {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return time.Time{}, Invalidf("query parameter expires: %.128q is neither an RFC 3339 time nor a number of seconds", text)
		}
		if seconds < 1 || seconds > latest {
			return time.Time{}, Invalidf("query parameter expires: must be between 1 and %d seconds", latest)
		}
		until = now.Add(time.Duration(seconds) * time.Second)
	}
	until = until.UTC().Truncate(time.Second)
	switch {
	case !until.After(now):
		return time.Time{}, Invalidf("query parameter expires: must be in the future (got %s)", until.Format(time.RFC3339))
	case until.After(now.Add(MaxSigned)):
		return time.Time{}, Invalidf("query parameter expires: must be at most %d seconds away (got %s)", latest, until.Format(time.RFC3339))
	case until.After(expiresAt):
		return time.Time{}, Invalidf("query parameter expires: must not be after the sandbox's own expiry, %s (got %s)",
			expiresAt.UTC().Format(time.RFC3339), until.Format(time.RFC3339))
	}
	return until, nil
}
