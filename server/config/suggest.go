package config

import (
	"reflect"
	"regexp"
	"strings"
)

// arrayIndex is the part of a key that names an entry of an array.
var arrayIndex = regexp.MustCompile(`\[[0-9]+\]`)

// knownKeys lists every section and key below t, in the order of the structs; an
// entry of an array of tables appears as "server.keys.name".
func knownKeys(path string, t reflect.Type) (sections, keys []string) {
	for name, i := range taggedFields(t) {
		key, field := joinKey(path, name), t.Field(i).Type
		if field.Kind() == reflect.Slice && field.Elem().Kind() == reflect.Struct {
			field = field.Elem()
		}
		if field.Kind() == reflect.Pointer {
			field = field.Elem()
		}
		if field.Kind() != reflect.Struct {
			keys = append(keys, key)
			continue
		}
		below, leaves := knownKeys(key, field)
		sections = append(append(sections, key), below...)
		keys = append(keys, leaves...)
	}
	return sections, keys
}

// nearestKey guesses what was meant by a key that does not exist: a slip of two
// letters, or the right name in the wrong section. It is empty without a good guess.
func nearestKey(key string) string {
	sections, keys := knownKeys("", reflect.TypeFor[Config]())
	lower := strings.ToLower(arrayIndex.ReplaceAllString(key, ""))
	name := lower[strings.LastIndexByte(lower, '.')+1:]
	best, distance := "", 3
	for _, candidate := range append(sections, keys...) {
		d := editDistance(lower, candidate)
		if candidate[strings.LastIndexByte(candidate, '.')+1:] == name {
			d = min(d, 2)
		}
		if d < distance {
			best, distance = candidate, d
		}
	}
	return best
}

// editDistance is Levenshtein's: the fewest insertions, deletions and
// replacements of bytes that turn a into b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j]+1, row[j+1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
