package lifecycle

import (
	"maps"
	"net/url"
	"slices"
	"strings"
)

// MergeMetadata returns the metadata after a JSON merge patch (RFC 7386): a value sets its key, nil
// removes it, keys that the patch does not name stay. It returns an Error of KindInvalid when the
// result breaks a rule that holds for metadata at creation too.
func MergeMetadata(metadata map[string]string, patch map[string]*string) (map[string]string, error) {
	merged := maps.Clone(metadata)
	if merged == nil {
		merged = make(map[string]string, len(patch))
	}
	for key, value := range patch {
		if value == nil {
			delete(merged, key)
		} else {
			merged[key] = *value
		}
	}
	return merged, validateMetadata(merged)
}

// DiffMetadata returns what makes of one metadata another: the keys to set, with their values, and
// those to remove, sorted. Both are nil when there are none.
func DiffMetadata(before, after map[string]string) (set map[string]string, removed []string) {
	for key, value := range after {
		if old, had := before[key]; !had || old != value {
			if set == nil {
				set = make(map[string]string)
			}
			set[key] = value
		}
	}
	for key := range before {
		if _, has := after[key]; !has {
			removed = append(removed, key)
		}
	}
	slices.Sort(removed)
	return set, removed
}

// ParseMetadataFilter reads the value of the metadata query parameter, percent-decoded once as
// every query parameter is: pairs of key=value joined by &, keys and values percent-encoded once
// more when they contain those signs. It returns an Error of KindInvalid.
func ParseMetadataFilter(text string) (map[string]string, error) {
	if text == "" {
		return nil, nil
	}
	filter := make(map[string]string)
	for _, pair := range strings.Split(text, "&") {
		rawKey, rawValue, ok := strings.Cut(pair, "=")
		key, keyErr := url.QueryUnescape(rawKey)
		value, valueErr := url.QueryUnescape(rawValue)
		if !ok || key == "" || keyErr != nil || valueErr != nil {
			return nil, Invalidf("metadata: %.128q is not a key=value pair with both sides percent-encoded", pair)
		}
		if old, twice := filter[key]; twice && old != value {
			return nil, Invalidf("metadata: key %.128q is asked for with two different values", key)
		}
		filter[key] = value
	}
	return filter, nil
}
