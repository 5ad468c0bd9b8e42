"""Judges of what converts pictures, films and sound: they read and write files, and reach nothing through their formats."""

from __future__ import annotations

import re

from lgov_core.policies.options import names
from lgov_core.policies.shell_call import Call, Judge

#: Options of ffmpeg and ffprobe that take no value.
_FF_FLAGS = frozenset(
    names(
        """
    -y -n -an -vn -sn -dn -hide_banner -stats -nostats -nostdin -shortest -copyts -re -accurate_seek -noautorotate -xerror
    -version -formats -codecs -encoders -decoders -filters -pix_fmts -protocols -muxers -demuxers -layouts -L -h -benchmark
    -show_streams -show_format -show_frames -show_packets -show_chapters -show_entries_all -count_frames -count_packets
    -pretty -sexagesimal -unit -show_error -show_programs -ignore_unknown -copy_unknown -start_at_zero
    """
    )
)
#: Options that take a value which names no file; the letters behind a colon say of which stream.
_FF_VALUES = frozenset(
    names(
        """
    c codec vcodec acodec scodec b ab vb r s aspect t to ss sseof ar ac crf cq preset tune profile level pix_fmt map
    map_metadata map_chapters metadata f vf af filter filter_complex lavfi loop framerate vframes aframes frames q qscale qp
    g bf threads movflags loglevel v maxrate minrate bufsize x264-params x265-params itsoffset itsscale stream_loop vsync
    fps_mode async vol volume strict compression_level lossless pass color_primaries color_trc colorspace color_range
    start_number update segment_time hls_time hls_list_size hls_flags hls_playlist_type disposition tag sample_fmt
    channel_layout ch_layout show_entries select_streams of print_format fflags flags sws_flags avoid_negative_ts safe
    max_muxing_queue_size row-mt deadline cpu-used speed tile-columns video_size pixel_format sample_rate channels bsf
    read_intervals probesize analyzeduration video_track_timescale id3v2_version write_xing audio_channel_layout an_q
    """
    )
)
#: Filters and formats that read other files, take commands or load code.
_FF_REACHING = re.compile(
    r"(?:^|[,;\[\]=:'\s])(?:a?movie|textfile|filename|file|fontfile|a?sendcmd|a?zmq|ladspa|lv2|frei0r|plugin|amovie|script|openclick|metadata=.*file)\s*="
)
_FF_FORMATS = frozenset({"tee", "rtp", "rtsp", "flv_http", "ffmetadata_url", "fifo"})
_ELSEWHERE = re.compile(r"[A-Za-z][\w+.,-]*:")
_PIPES = re.compile(r"-|pipe:[0-2]?")


def _ffmpeg(call: Call) -> None:
    words = list(call.args)
    before = ""
    while words:
        word = words.pop(0)
        option = word.lstrip("-").partition(":")[0]
        if not word.startswith("-") or word == "-":
            _place(call, word, written=call.name == "ffmpeg")
        elif word in _FF_FLAGS:
            continue
        elif word == "-i" and words:
            source = words.pop(0)
            if before == "lavfi":
                _settled(call, source)
            else:
                _place(call, source, written=False)
        elif option in _FF_VALUES and words:
            before = words.pop(0) if option in ("f", "lavfi") else (_settled(call, words.pop(0)) or before)
            if option == "f" and before in _FF_FORMATS:
                call.refuse(f"the format {before!r} sends to several places or to other machines.", "shell-network")
            if option == "lavfi":
                _settled(call, before)
        else:
            call.refuse(f"the option {word[:30]} is not known to be harmless.", "shell-unknown-command")


def _settled(call: Call, value: str) -> None:
    if _FF_REACHING.search(call.literal(value, "a setting")) is not None:
        call.refuse("filters that read other files or take commands are not allowed.")
    call.reads(part for part in re.split(r"[=:,;'\[\]]", value) if part)


def _place(call: Call, word: str, *, written: bool) -> None:
    """A file, by its plain name: what stands ahead of a colon is a protocol, which may lead anywhere."""
    if _PIPES.fullmatch(word):
        return
    if _ELSEWHERE.match(word):
        call.refuse("protocols are not allowed; name a file.", "shell-network")
    call.places.read(word)
    if written:
        call.places.write(word)


#: What ImageMagick may be told ahead of a colon: formats, colours and texts.
_PLAIN_CODER = re.compile(
    r"(?:png(?:8|24|32)?|jpe?g|gif|webp|tiff?|bmp|ico|avif|heic|null|info|txt|histogram|xc|canvas|gradient|plasma|rose|logo|pattern"
    r"|label|caption|rgba?|gray|sparse-color|json|pdf|mpr):(?!.*@)",
    re.I,
)
_IM_CLOSED = names("-script -process -print -remote -authenticate -debug -distribute-cache -loop-script")
#: Its options with a value that names no file, where the value may hold a colon.
_IM_SETTINGS = re.compile(
    r"-(?:define|set|format|draw|annotate|limit|extract|sampling-factor|gravity|comment|label|title|geometry|crop)"
)
_IM_WRITTEN = ("-write", "-path")


_IM_REACHING = re.compile(
    r"(?i)[@|]|\b(?:url|https?|ftp|file|msl|mvg|svg|ephemeral|text|vid|inline|show|win|x|dot|scan|screenshot|clipboard|pango):"
)
_IM_COMMANDS = frozenset(names("convert identify mogrify montage composite compare"))


def _picture(call: Call) -> None:
    """ImageMagick: what it reads lies in plain files, what it writes is its last word."""
    words = list(call.args)
    name = words.pop(0) if call.name == "magick" and _IM_COMMANDS.intersection(words[:1]) else call.name
    before = ""
    for word in words:
        _check_picture_word(call, word, before)
        before = word
    call.reads(words)
    if name == "mogrify":  # it writes what it reads
        for word in words:
            if "/" in word or re.search(r"\.\w{2,5}$", word):
                call.places.write(word)
    elif name != "identify":
        _check_picture_made(call, words[-1:])


def _check_picture_word(call: Call, word: str, before: str) -> None:
    if word in _IM_CLOSED:
        call.refuse(f"{word} is not allowed.")
    if _IM_REACHING.search(word):
        call.refuse("what a format reads from elsewhere or runs is not allowed; name plain files.")
    named = re.match(r"[A-Za-z][\w+-]*:", word) and not _PLAIN_CODER.match(word)
    if named and not _IM_SETTINGS.fullmatch(before):
        call.refuse(f"the format in {word[:30]!r} is not known to be harmless.", "shell-unknown-command")
    if before in _IM_WRITTEN:
        call.places.write(word)


def _check_picture_made(call: Call, last: list[str]) -> None:
    for word in last:
        target = re.sub(r"^[A-Za-z0-9]+:", "", word)
        if word in ("-version", "--version", "-help", "-list") or target in ("", "-"):
            continue
        if "%[" in word:
            call.refuse("write the name of what is made out.", "shell-unclear")
        if word.startswith("-"):
            call.refuse("name what is written as the last word.", "shell-unclear")
        call.places.write(target)


MEDIA_JUDGES: dict[str, Judge] = {
    **dict.fromkeys(("ffmpeg", "ffprobe"), _ffmpeg),
    **dict.fromkeys(("convert", "magick", "identify", "mogrify", "montage", "composite"), _picture),
}
