//! Append-only files: commands, behind an RDB file or without one, in one file or several.

use super::loader::{ImportLoader, Role};
use crate::config::split_words;
use anyhow::{Context, Result, anyhow, bail};
use flagstone_rdb::Expect;
use flagstone_rdb::file;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Maximum length of a header's or an annotation's line in bytes.
const LINE_MAX: u64 = 64 << 10;
/// Maximum size of one command in bytes, as it is held in memory: that of servers' query buffers.
const COMMAND_MAX: usize = 1 << 30;
/// Hexadecimal digits of the mark that ends a transfer of unknown length.
const MARK: usize = 40;
/// Assumed memory of a word beside its bytes.
const WORD_OVERHEAD: usize = 32;

/// Returns the files to load, in order.
pub(super) fn files(path: &Path) -> Result<Vec<(PathBuf, Role)>> {
    let mut manifest = path.to_path_buf();
    if path.is_dir() {
        let entries = fs::read_dir(path).with_context(|| format!("{}", path.display()))?;
        let mut manifests = Vec::new();
        for entry in entries {
            let entry = entry?.path();
            if entry.extension().is_some_and(|extension| extension == "manifest") {
                manifests.push(entry);
            }
        }
        let one = <[PathBuf; 1]>::try_from(manifests).map_err(|found| {
            anyhow!("{} has {} manifests of append-only files", path.display(), found.len())
        })?;
        [manifest] = one;
    }
    if manifest.extension().is_none_or(|extension| extension != "manifest") {
        return Ok(vec![(manifest, Role::Alone)]);
    }
    let text = fs::read_to_string(&manifest).with_context(|| format!("{}", manifest.display()))?;
    let names = listed(&text).with_context(|| format!("{}", manifest.display()))?;
    let count = names.len();
    let role = |at: usize| if at + 1 == count { Role::Last } else { Role::Before };
    let directory = manifest.parent().unwrap_or(Path::new("."));
    Ok(names.iter().enumerate().map(|(at, name)| (directory.join(name), role(at))).collect())
}

/// Returns the names of the files in a manifest: the base first, then the later files in order.
fn listed(manifest: &str) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for (line, number) in manifest.lines().zip(1..) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let malformed = || anyhow!("line {number} is malformed");
        let words = split_words(line).ok_or_else(malformed)?;
        let value = |name: &str| {
            let at = words.iter().step_by(2).position(|word| word.eq_ignore_ascii_case(name));
            at.and_then(|at| words.get(2 * at + 1))
        };
        let (Some(name), Some(seq), Some(kind)) = (value("file"), value("seq"), value("type"))
        else {
            return Err(malformed());
        };
        let seq: u64 = seq.parse().map_err(|_| malformed())?;
        if name.contains('/') {
            bail!("line {number}: '{name}' is no name of a file in the same directory");
        }
        match kind.as_str() {
            "b" => files.push(((false, seq), name.clone())),
            "i" => files.push(((true, seq), name.clone())),
            // Files that the base has replaced.
            "h" => {}
            _ => return Err(malformed()),
        }
    }
    files.sort();
    Ok(files.into_iter().map(|(_, name)| name).collect())
}

/// Loads one file of either format.
pub(super) fn load(loader: &mut ImportLoader, file: impl Read) -> Result<()> {
    let mut file = BufReader::new(file);
    if !matches!(file.fill_buf()?.first(), None | Some(b'*' | b'#')) {
        let mut rdb = file::File::open(file).context("damaged at its beginning")?;
        loader.load_rdb(&mut rdb)?;
        let offset = rdb.offset();
        return Commands::new(rdb.into_rest(), offset).load(loader);
    }
    if loader.role() == Role::Alone && file.fill_buf()?.is_empty() {
        bail!("it is empty");
    }
    Commands::new(file, 0).load(loader)
}

/// The reason why there is no next command.
enum Stop {
    End,
    /// The file ends within a command.
    Truncated,
    Malformed(&'static str),
    Io(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Stop::Io(error)
    }
}

/// The commands of a file.
struct Commands<R: Read> {
    file: BufReader<R>,
    offset: u64,
}

impl<R: Read> Commands<R> {
    fn new(file: R, offset: u64) -> Self {
        Commands { file: BufReader::new(file), offset }
    }

    /// Returns true if only the mark is left by which a server told `redis-cli --rdb -` where the
    /// file ends; redis-cli leaves it in its output.
    fn is_mark(&mut self) -> io::Result<bool> {
        let mut rest = Vec::with_capacity(MARK + 1);
        self.file.by_ref().take(MARK as u64 + 1).read_to_end(&mut rest)?;
        let is_hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        Ok(rest.len() == MARK && rest.iter().all(is_hex))
    }

    /// Sends all commands to the server.
    fn load(mut self, loader: &mut ImportLoader) -> Result<()> {
        if self.file.fill_buf()?.is_empty() {
            return Ok(());
        }
        if !matches!(self.file.fill_buf()?.first(), Some(b'*' | b'#')) {
            if self.is_mark()? {
                loader.note(format!(
                    "the {MARK} bytes behind the end of the file are redis-cli's mark of the end: \
                    left out"
                ));
                return Ok(());
            }
            bail!("damaged at offset {}: something is behind the end", self.offset);
        }
        loader.begin_commands()?;
        loader.select_first()?;
        // Offset of the open transaction.
        let mut transaction = None;
        let (end, stop) = loop {
            let begin = self.offset;
            let mut words = match self.command() {
                Ok(words) => words,
                Err(stop) => break (begin, stop),
            };
            loader.progress(begin);
            match words.first().map(|name| name.to_ascii_uppercase()).as_deref() {
                Some(b"MULTI") => transaction = Some(begin),
                Some(b"EXEC") => transaction = None,
                _ => {}
            }
            loader.shift.command(&mut words);
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            let about = loader.about(None);
            loader.pipeline.send(&words, Expect::Any, about)?;
            loader.commands += 1;
        };
        loader.forget_selected();
        if transaction.is_some() {
            let about = loader.about(None);
            loader.pipeline.send(&[b"DISCARD"], Expect::Any, about)?;
        }
        loader.pipeline.settle()?;
        let is_cut = matches!(stop, Stop::Truncated) || transaction.is_some();
        let end = transaction.unwrap_or(end);
        match stop {
            Stop::Malformed(reason) => bail!("damaged at offset {end}: {reason}"),
            Stop::Io(error) => Err(error).context(format!("it cannot be read at offset {end}")),
            _ if is_cut && loader.role() == Role::Before => {
                bail!("damaged: it ends in the middle of what begins at offset {end}")
            }
            _ if is_cut => {
                loader.note(format!("the file is cut: what begins at offset {end} was left out"));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn command(&mut self) -> Result<Vec<Vec<u8>>, Stop> {
        let mut line = self.line()?;
        while line.starts_with(b"#") {
            line = self.line()?;
        }
        let count = number(&line, b'*').filter(|count| *count > 0);
        let count = count.ok_or(Stop::Malformed("no command begins here"))?;
        let (mut words, mut bytes) = (Vec::new(), 0);
        for _ in 0..count {
            let line = self.line().map_err(|stop| match stop {
                Stop::End => Stop::Truncated,
                other => other,
            })?;
            let len = number(&line, b'$').ok_or(Stop::Malformed("a malformed word"))?;
            bytes += usize::try_from(len).unwrap_or(COMMAND_MAX).min(COMMAND_MAX) + WORD_OVERHEAD;
            if bytes > COMMAND_MAX {
                return Err(Stop::Malformed("a command is longer than 1 GiB"));
            }
            words.push(self.word(len)?);
        }
        Ok(words)
    }

    fn word(&mut self, len: u64) -> Result<Vec<u8>, Stop> {
        let mut word = Vec::new();
        let read = self.file.by_ref().take(len + 2).read_to_end(&mut word)?;
        self.offset += read as u64;
        if (read as u64) < len + 2 {
            return Err(Stop::Truncated);
        }
        if !word.ends_with(b"\r\n") {
            return Err(Stop::Malformed("a word does not end where it should"));
        }
        word.truncate(word.len() - 2);
        Ok(word)
    }

    /// Returns a line, without its end.
    fn line(&mut self) -> Result<Vec<u8>, Stop> {
        let mut line = Vec::new();
        let read = self.file.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)?;
        self.offset += read as u64;
        match line.strip_suffix(b"\n") {
            Some(text) => Ok(text.strip_suffix(b"\r").unwrap_or(text).to_vec()),
            None if line.is_empty() => Err(Stop::End),
            None if read as u64 == LINE_MAX => Err(Stop::Malformed("a line is too long")),
            None => Err(Stop::Truncated),
        }
    }
}

/// Parses the number behind a sign.
fn number(line: &[u8], sign: u8) -> Option<u64> {
    let digits = line.strip_prefix(&[sign])?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(file: &[u8]) -> (Vec<Vec<String>>, &'static str) {
        let mut commands = Commands::new(file, 0);
        let mut found = Vec::new();
        loop {
            match commands.command() {
                Ok(words) => {
                    let text = |word: Vec<u8>| String::from_utf8(word).unwrap();
                    found.push(words.into_iter().map(text).collect());
                }
                Err(Stop::End) => return (found, "end"),
                Err(Stop::Truncated) => return (found, "truncated"),
                Err(Stop::Malformed(reason)) => return (found, reason),
                Err(Stop::Io(error)) => panic!("{error}"),
            }
        }
    }

    #[test]
    fn commands_between_annotations() {
        let file = b"#TS:1\r\n*1\r\n$4\r\nPING\r\n#TS:2\r\n*2\r\n$3\r\nGET\r\n$2\r\n\r\n\r\n";
        let all = vec![vec!["PING".to_owned()], vec!["GET".to_owned(), "\r\n".to_owned()]];
        assert_eq!(words(file), (all.clone(), "end"));
        for cut in 25..file.len() {
            let (found, stop) = words(&file[..cut]);
            assert_eq!(found, all[..1]);
            // The file is complete behind the second annotation.
            assert_eq!(stop, if cut == 28 { "end" } else { "truncated" }, "{cut}");
        }
        assert_eq!(words(b"*1\r\n$4\r\nPINGxx").1, "a word does not end where it should");
        assert_eq!(words(b"*0\r\n").1, "no command begins here");
        assert_eq!(words(b"*1\r\n$99999999999\r\n").1, "a command is longer than 1 GiB");
        assert_eq!(words(b"*99999999999\r\n$1\r\na\r\n").1, "truncated");
    }

    #[test]
    fn a_manifest_names_the_files_in_order() {
        let manifest = "file a.2.incr.aof seq 2 type i\nfile a.1.incr.aof seq 1 type i\n\
                        file \"a 1.base.rdb\" seq 1 type b\nfile old seq 1 type h\n";
        assert_eq!(listed(manifest).unwrap(), ["a 1.base.rdb", "a.1.incr.aof", "a.2.incr.aof"]);
        for wrong in ["file a seq 1", "file a seq x type i", "file ../a seq 1 type i", "a b c"] {
            assert!(listed(wrong).is_err(), "{wrong}");
        }
    }
}
