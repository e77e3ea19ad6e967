package box

import (
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"sandbox.internal/server/lifecycle"
)

// longestPlain is how many bytes of JSON a record may have in its label as they are, for operators
// to read. Longer ones are compressed: the engine repeats labels in each list of its containers,
// and writes some characters of them in six bytes.
const longestPlain = 4096

// encodeRecord returns the value of labelRecord: JSON, or its gzip in base64.
func encodeRecord(record lifecycle.Record) (string, error) {
	encoded, err := lifecycle.EncodeJSON(record)
	if err != nil || len(encoded) <= longestPlain {
		return string(encoded), err
	}
	var label strings.Builder
	text := base64.NewEncoder(base64.StdEncoding, &label)
	compressed := gzip.NewWriter(text)
	_, err = compressed.Write(encoded)
	err = errors.Join(err, compressed.Close(), text.Close())
	return label.String(), err
}

// decodeRecord returns the record that encodeRecord has encoded.
func decodeRecord(label string) (record lifecycle.Record, err error) {
	encoded := []byte(label)
	if !strings.HasPrefix(label, "{") {
		compressed, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(label)))
		if err != nil {
			return record, err
		}
		if encoded, err = io.ReadAll(compressed); err != nil {
			return record, err
		}
	}
	err = json.Unmarshal(encoded, &record)
	return record, err
}
