package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

const (
	hashLength = 2 * sha256.Size
	prefix     = `{"prev":"`
	seqInfix   = `","seq":`
	kindInfix  = `,"kind":"`
	intentName = `,"intent":`
	hashInfix  = `,"hash":"`
	suffix     = `"}`
	// maxLine bounds a line without its newline, in bytes. Ours are far shorter.
	maxLine = 1 << 20
)

// origin is the prev of a chain's first line.
var origin = strings.Repeat("0", hashLength)

// link is the end of a chain: what the next line builds on.
type link struct {
	seq  uint64
	hash string
}

// seal encodes l as the next line of a chain, with its newline, and returns the new end of the
// chain. The hash is over everything that stands before it in the line. A line that Verify could
// not read as a whole is refused: behind it the log could not be taken up any more.
func (end link) seal(l line) ([]byte, link, error) {
	l.Prev, l.Seq = end.hash, end.seq+1
	body, err := json.Marshal(l)
	if err != nil {
		return nil, link{}, fmt.Errorf("encode: %w", err)
	}
	body = body[:len(body)-1] // its closing brace
	digest := sha256.Sum256(body)
	hash := hex.EncodeToString(digest[:])
	body = append(body, hashInfix...)
	body = append(body, hash...)
	body = append(body, suffix+"\n"...)
	if len(body)-1 > maxLine {
		return nil, link{}, fmt.Errorf("the line would have %d bytes, the limit is %d",
			len(body)-1, maxLine)
	}
	return body, link{l.Seq, hash}, nil
}

var (
	errForm = errors.New("is not a line of an audit log")
	errHash = errors.New("does not fit its hash: it was changed")
)

// header is what of a line matters to the chain.
type header struct {
	prev   string
	seq    uint64
	kind   Kind
	intent uint64 // the intention that an outcome belongs to
	hash   string
}

// unseal checks one line by itself, without its newline. What the hash covers is as it was written,
// so the fields are taken from where they were put: to decode the JSON would take ten times as
// long, and logs grow large.
func unseal(text []byte) (header, error) {
	body, hash, ok := cutSuffix(text)
	if !ok {
		return header{}, errForm
	}
	rest, ok := bytes.CutPrefix(body, []byte(prefix))
	if !ok || len(rest) < hashLength {
		return header{}, errForm
	}
	h := header{prev: string(rest[:hashLength]), hash: hash}
	if rest, ok = bytes.CutPrefix(rest[hashLength:], []byte(seqInfix)); !ok {
		return header{}, errForm
	}
	seq, rest, ok := bytes.Cut(rest, []byte(kindInfix))
	kind, _, closed := bytes.Cut(rest, []byte(`"`))
	if !ok || !closed {
		return header{}, errForm
	}
	if digest := sha256.Sum256(body); hex.EncodeToString(digest[:]) != hash {
		return header{}, errHash
	}
	h.kind = Kind(kind)
	var err error
	if h.seq, err = strconv.ParseUint(string(seq), 10, 64); err != nil {
		return header{}, errForm
	}
	if h.kind == KindOutcome {
		// No value holds this name: a quote inside of one has a backslash before it.
		if at := bytes.LastIndex(body, []byte(intentName)); at >= 0 {
			digits, _, _ := bytes.Cut(body[at+len(intentName):], []byte(","))
			h.intent, _ = strconv.ParseUint(string(digits), 10, 64) // 0 is no intention
		}
	}
	return h, nil
}

// cutSuffix splits a line into what its hash covers and the hash.
func cutSuffix(text []byte) (body []byte, hash string, ok bool) {
	at := len(text) - len(suffix) - hashLength - len(hashInfix)
	if at < 0 || !bytes.HasPrefix(text[at:], []byte(hashInfix)) ||
		!bytes.HasSuffix(text, []byte(suffix)) {
		return nil, "", false
	}
	return text[:at], string(text[at+len(hashInfix) : len(text)-len(suffix)]), true
}
