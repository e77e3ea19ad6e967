package eventlog

import "unicode/utf8"

// MaxFragment is how many bytes of a line are shown in one event at most; a longer line comes in
// fragments.
const MaxFragment = 64 << 10

// WholeRunes returns how many of the bytes to show now: all, but for a UTF-8 sequence at their end
// whose rest may still come. It is 0 when they are nothing but the beginning of one.
func WholeRunes(data []byte) int {
	for back := 1; back < utf8.UTFMax && back <= len(data); back++ {
		if b := data[len(data)-back]; utf8.RuneStart(b) {
			if b >= utf8.RuneSelf && !utf8.FullRune(data[len(data)-back:]) {
				return len(data) - back
			}
			break
		}
	}
	return len(data)
}
